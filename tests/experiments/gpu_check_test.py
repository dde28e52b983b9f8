"""The device check: its rules, its arithmetic, and all of it at tiny sizes."""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import methods_fixture as fx
import pytest

from experiments import gpu_check, imagined, pieces
from experiments.gpu import items, process, report, summary
from experiments.roofline_model import Device, Setting, target_pass
from experiments.roofline_presets import TARGETS, device_named

pytestmark = pytest.mark.usefixtures('quick_compiles')

ROOT = pathlib.Path(__file__).parents[2]


class TestItems:
  def test_what_fails_says_why_and_others_go_on(self):
    def broken():
      raise ZeroDivisionError('no')

    made = [
      items.Item(name=n, known={'part': 'x'}, run=run)
      for n, run in (('a', dict), ('b', broken), ('c', lambda: {'ms': 1}))
    ]
    planned, *rows = items.rows_of(made, seconds=100, done=['a'])
    assert [x['name'] for x in planned['planned']] == ['b', 'c']
    said = [x['begun']['name'] for x in rows if 'begun' in x]
    b, c = (x for x in rows if 'begun' not in x)
    assert said == ['b', 'c']
    assert (b['ok'], b['why']) == (False, 'ZeroDivisionError: no')
    assert (c['ok'], c['ms'], c['part']) == (True, 1, 'x')

  @pytest.mark.parametrize(
    ('bound', 'why'),
    [(dict(programs=1), 'used up'), (dict(seconds=-1), '0 s are left')],
  )
  def test_bounds(self, bound, why):
    run = lambda: {}
    made = [
      items.Item(name=n, known={}, run=run, full=n == 'a') for n in ('a', 'b')
    ]
    rows = list(items.rows_of(made, **{'seconds': 100} | bound))
    outcomes = [x for x in rows if 'ok' in x]
    assert len(outcomes) == 2 and outcomes[-1]['ok'] is None
    assert why in outcomes[-1]['why']


# What `experiments.gpu.part` says, without jax: b ends or blocks its process.
CHILD = """
import json, os, sys, time
asked = json.loads(sys.argv[1])
say = lambda **row: print(json.dumps(row), flush=True)
print('a library says hello')
left = [x for x in 'abc' if x not in asked['done']]
say(planned=[dict(name=x) for x in left])
for x in left:
  say(begun=dict(name=x, part='p'))
  if x == 'b' and asked['how'] == 'dies':
    sys.exit('lost the device')
  if x == 'b' and asked['how'] == 'hangs':
    time.sleep(600)
  say(name=x, part='p', ok=True)
"""


class TestProcess:
  def run(self, how, **more):
    rows = []
    asked = {'kind': 'kernels', 'how': how}
    command = more.pop('command', ('-c', CHILD))
    more = {'seconds': 120} | more
    process.run(asked, rows.append, command=command, **more)
    return {x['name']: (x['ok'], x.get('why')) for x in rows}

  def test_a_lost_process_costs_one_item(self):
    rows = self.run('dies')
    assert rows['a'] == rows['c'] == (True, None)
    assert rows['b'] == (
      False,
      'the process ended with 1: lost the device',
    )

  def test_one_that_hangs_is_stopped(self, monkeypatch):
    monkeypatch.setattr(process, 'ITEM_S', 4.0)
    rows = self.run('hangs')
    assert rows['b'] == (False, 'stopped: it took too long')
    assert rows['c'] == (True, None)

  def test_what_is_left_is_listed(self):
    rows = self.run('dies', restarts=0)
    assert rows['c'][0] is None and rows['c'][1].startswith('not run')

  def test_one_that_does_not_begin(self):
    rows = self.run('', command=('-c', 'raise SystemExit("no jax")'))
    assert rows == {
      'kernels': (False, 'the process ended with 1: no jax'),
    }


@pytest.mark.parametrize('name', ['dflash', 'eagle3'])
def test_made_up_pieces_have_the_shapes_of_a_round(name):
  """Catches a piece that is timed at another size than in its round."""
  case = fx.make_case(name)
  state = imagined.state(
    case.method, case.params, batch=2, context=20, new_tokens=20
  )
  args = case.method, case.params, state
  drafted = pieces.drafted(*args, by=imagined.outcome)
  drafted = dataclasses.replace(drafted, state=state)
  of = lambda part: jax.eval_shape(
    part[0], jnp.asarray(True), part[1], *part[2]
  )
  committed = of(pieces.committing(*args, drafted, by=imagined.outcome))
  assert committed == of(pieces.whole_round(*args))
  tree = of(pieces.building(*args, by=imagined.outcome))[1][0]
  assert tree == jax.eval_shape(lambda x: x, drafted.tree)


DEVICE = Device(gb_s=1000, tflop_s=300)


def rows_of_a_setting(**ms):
  """Rows of qwen3-8b at batch 1, of plain steps of 20 ms."""
  rows = []
  for name, value in ms.items():
    kind, _, label = name.partition('_')
    rows.append(
      dict(
        part='round',
        setting='qwen3-8b batch 1',
        kind=kind,
        labels=[label.replace('_', ' ')],
        nodes=int(label[-2:]) if label[-1].isdigit() else 1,
        context=512,
        batch=1,
        ok=True,
        ms=value,
        of_plain=value / 20,
        name=name,
      )
    )
  return rows


SPLIT = rows_of_a_setting(
  round_ar=20.0,
  verify_ar=19.0,
  round_treeflash_65=30.0,
  drafted_treeflash_65=6.0,
  tree_treeflash_65=1.0,
  verify_treeflash_65=20.9,
  commit_treeflash_65=0.5,
)


class TestSummary:
  def test_a_line(self):
    """Catches a drafter that is charged for the tree, and a wrong ratio."""
    ar, tree = summary.methods(SPLIT, DEVICE)
    assert tree['draft_ms'] == 5 and tree['tree_ms'] == 1
    assert tree['rest_ms'] == pytest.approx(30 - 5 - 1 - 20.9 - 0.5)
    assert tree['outside'] == pytest.approx((1 + 0.5 + 2.6) / 30)
    assert tree['tau'] == 11.02
    assert tree['speed_up'] == pytest.approx(11.02 * 20 / 30)
    moved = target_pass(TARGETS['qwen3-8b'], Setting(), 1).bytes
    assert ar['bandwidth'] == pytest.approx(moved / 20e-3 / 1e12)
    assert ar['predicted_ms'] > 15 and 'speed_up' not in ar

  def test_a_part_that_is_not_there_leaves_no_rest(self):
    rows = [x for x in SPLIT if x['kind'] != 'commit']
    line = summary.methods(rows, None)[1]
    assert line['commit_ms'] is None and 'rest_ms' not in line
    assert 'predicted_ms' not in line

  @pytest.mark.parametrize(
    ('method', 'nodes', 'tau'),
    [
      ('dflash', 16, 7.88),
      ('ddtree', 17, 8.42),
      ('ddtree', 65, 9.56),
      ('eagle3', 60, 3.81),
      ('taps', 65, None),
      ('ar', 1, None),
    ],
  )
  def test_published(self, method, nodes, tau):
    assert summary.published('qwen3-8b', method, nodes) == tau

  def test_devices(self):
    found = device_named
    assert found('NVIDIA H200').gb_s == 4800
    assert found('NVIDIA A100-SXM4-80GB').gb_s == 2039
    assert found('NVIDIA H100 PCIe') is found('cpu') is None


@pytest.mark.parametrize(
  ('name', 'given', 'want'),
  [
    ('NVIDIA H200', None, 4800),
    ('NVIDIA H200', 1000, 1000),
    ('Some GPU', None, None),
    ('Some GPU', 1000, 1000),
  ],
)
def test_a_given_bandwidth_counts(tmp_path, name, given, want):
  record = gpu_check.Record(tmp_path / 'new' / 'out.json', {}, given)
  record.rows.append({'part': 'device', 'device': name})
  device = record.device
  assert want == (None if device is None else device.gb_s)


class TestVerdict:
  def test_goals(self):
    said = report.verdict(SPLIT, DEVICE, tiny=False)
    assert 'takes 1.10 times one row' in said
    assert 'reaches the goal of 1.15' in said
    assert '13.7% (treeflash 65' in said and 'misses the goal of 3%' in said
    assert 'misses the goal of 85%' in said
    fast = dataclasses.replace(DEVICE, gb_s=800)
    assert 'reaches the goal of 85%' in report.verdict(SPLIT, fast, tiny=False)

  def test_nothing_is_claimed_of_what_did_not_run(self):
    said = report.verdict([], None, tiny=False)
    assert said.count('not measured') + said.count('not both measured') == 3
    assert 'reaches' not in said

  def test_failures_and_gaps_are_listed(self):
    failed = dict(part='kernel', op='o', backend='b', case='c', timed=True)
    failed |= dict(name='o/b: c', ok=False, why='Bad', interpreted=False)
    missing = dict(part='setting', name='s') | items.not_run('no time')
    text = report.text([failed, missing, *SPLIT], DEVICE, tiny=False)
    assert 'failed: o/b: c: Bad' in text
    assert 'not run: no time - s' in text
    assert text.splitlines()[-1].split()[5:7] == ['65', '30.000']
    assert gpu_check._wrong([failed]) == ['o/b']


def test_backends_that_no_op_can_use():
  refusals = {'x': {'a': 'no', 'b': None}, 'y': {'a': 'no', 'b': 'no'}}
  found = gpu_check._refused({'refusals': refusals})
  assert found == {'a': 'no', 'b': None}


@pytest.mark.slow
def test_all_of_it(tmp_path):
  out = tmp_path / 'check.json'
  run = functools.partial(
    subprocess.run, cwd=ROOT, capture_output=True, text=True
  )
  command = [sys.executable, '-m', 'experiments.gpu_check', '--tiny']
  done = run(
    [*command, '--minutes=20', f'--out={out}'],
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )
  assert done.returncode == 0, done.stderr
  record = json.loads(out.read_text())
  assert record['complete'] and record['date'] and record['seed'] >= 0
  assert not list(summary.failures(record['rows'])), done.stdout
  assert {x['backend'] for x in record['kernels']} == {
    *('xla', 'cpu'),
    'triton, interpreted',
  }
  assert [x['method'] for x in record['methods']] == [
    *('ar', 'treeflash 5', 'eagle3'),
  ]
  assert all('outside' in x for x in record['methods'])
  missing = ' '.join(summary.not_run(record['rows']))
  assert 'needs platform cuda' in missing and '0 programs' in missing
  assert 'Verdict: 7 of 7' in done.stdout
  assert 'nothing of a device' in record['verdict']
  wrong = run([*command, '--minutes=0'])
  assert wrong.returncode == 1 and 'minutes is 0' in wrong.stderr
