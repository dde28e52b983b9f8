"""The pieces of a round are those of the round, and their shares add up."""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from experiments import breakdown, pieces, run
from specjax.decode.loop import decode
from specjax.decode.round import speculative_round
from specjax.decoder import Decoder

pytestmark = pytest.mark.usefixtures('quick_compiles')

ROOT = pathlib.Path(__file__).parents[2]
SAMPLED = {'temperature': 1.0}


@pytest.fixture(scope='module', params=['ar', 'draft_model', 'caddtree'])
def begun(request):
  """(method, params, state): no logits at all, a scratch that holds the
  drafter's cache, and a tree of several sizes."""
  case = fx.make_case(request.param)
  state = fx.start(case, fx.rows_of(**SAMPLED))
  state, _ = decode(case.method, case.params, state, max_rounds=2)
  return case.method, case.params, state


def once(part):
  """A piece's outcome, run once."""
  step, kept, args = part
  return jax.jit(step)(jnp.asarray(True), kept, *args)


def same(got, want):
  got, want = fx.snapshot((got, want))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), got, want
  )


class TestPieces:
  def test_commit_ends_where_the_round_ends(self, begun):
    """Catches a wrong scratch, path or cache: both stand for one state."""
    method, params, state = begun
    want, _ = jax.jit(lambda p, s: speculative_round(method, p, s))(
      params, state
    )
    drafted = pieces.drafted(*begun)
    # A cache that the scratch passes on must be the one written in place.
    held = jax.tree.leaves(drafted.made, is_leaf=pieces._is_cache)
    assert not any(
      x.capacity == state.cache.capacity for x in held if pieces._is_cache(x)
    )
    caches, outputs = once(pieces.committing(*begun, drafted))
    assert int(want.context.length_B.sum()) > int(state.context.length_B.sum())
    same(outputs[0], want.context)
    same(caches[0], want.cache)
    same((caches, outputs), once(pieces.whole_round(*begun)))

  def test_the_replayed_tree_is_the_tree(self, begun):
    """Catches candidates in another order than the tree asks for them."""
    tree, asked = once(pieces.building(*begun))[1]
    same(tree, pieces.drafted(*begun).tree)
    assert len(asked) == max(begun[0].tree.ask.depth - 1, 0) or (
      begun[0].drafter.shared_rows
    )


def test_a_job_runs_as_often_as_it_says():
  """Catches runs that are dropped or moved out of the loop, a donated buffer
  that is used twice, and one that was not the job's to donate."""
  seen, begun = [], jnp.zeros(1000)

  def step(ok, kept, x):
    jax.debug.callback(lambda v: seen.append(float(v)), kept[0])
    return kept + 1, pieces.after(ok, x)

  call = pieces.job(step, begun, (jnp.float32(5),), 3)
  call()
  call()
  jax.effects_barrier()
  assert sorted(seen) == [0, 1, 2, 3, 4, 5]
  assert not begun.is_deleted()


def test_after_hangs_on_what_was_before():
  for ok, want in ((True, [1, 2]), (False, [0, 0])):
    got = jax.jit(pieces.after)(jnp.asarray(ok), jnp.asarray([1, 2]))
    assert got.tolist() == want


def test_shares_add_up():
  """Catches a drafter that is charged for the tree as well."""
  ms = dict(round=10.0, drafted=4.0, tree=1.0, verify=5.0, commit=0.5)
  row = breakdown.shares(ms)
  assert (row['draft_ms'], row['tree_ms'], row['rest_ms']) == (3, 1, 0.5)
  names = (*breakdown.PARTS, 'rest')
  assert sum(row[f'{n}_share'] for n in names) == pytest.approx(1)
  row = breakdown.shares(ms | {'tree': 4.5})
  assert row['draft_ms'] == 0 and row['rest_ms'] == 0


@pytest.fixture
def small(monkeypatch):
  """`breakdown` with methods of the tiny target, on prompts of ids."""

  def load_all(methods, target, drafters, dtype):
    cases = {name: fx.make_case(name) for name in ('ar', *methods)}
    return {
      name: Decoder(method=c.method, params=c.params)
      for name, c in cases.items()
    }

  monkeypatch.setattr(breakdown, 'load_all', load_all)
  monkeypatch.setattr(
    breakdown, 'read_prompts', lambda name, limit: fx.PROMPTS[:limit]
  )
  return {
    **dict(methods=['caddtree'], chat=False, batch=2, begun=2),
    **dict(repeats=1, inner=1, max_new_tokens=4),
  }


def test_rows_of_methods(small, tmp_path, monkeypatch):
  """Catches a row that is done while it is timed, and one timed twice."""
  (tmp_path / 'summary.jsonl').write_text(
    json.dumps({'label': 'caddtree', 'mean_accepted': 2.5}) + '\n'
  )
  small |= SAMPLED | {'summary': str(tmp_path / 'summary.jsonl')}
  rows = breakdown.breakdown(run_dir=tmp_path / 'run', **small)
  assert [row['label'] for row in rows] == ['ar', 'caddtree']
  assert run.read_rows(tmp_path / 'run' / breakdown.ROWS) == json.loads(
    run.dumps(rows)
  )
  ar, other = rows
  assert [len(p) + 3 for p in fx.PROMPTS[:2]] == ar['context']
  assert (ar['mean_accepted'], other['mean_accepted']) == (None, 2.5)
  assert all(row['round_ms'] > 0 < row['verify_ms'] for row in rows)
  wanted = 'device versions dtype nodes temperature batch prompt_set slots'
  assert set(wanted.split()) <= set(other)
  table = breakdown.as_table(rows).splitlines()
  assert table[-1].split()[0] == 'caddtree' and table[-1].endswith('2.50')
  assert len({len(line) for line in table}) == 1

  monkeypatch.setattr(breakdown, '_times', lambda *a: pytest.fail('again'))
  assert len(breakdown.breakdown(run_dir=tmp_path / 'run', **small)) == 2


def test_wrong_settings_cost_no_time(small, tmp_path, monkeypatch):
  monkeypatch.setattr(breakdown, 'load_all', lambda *a: pytest.fail('loads'))
  for changes, message in (
    ({'inner': 0}, 'inner is 0'),
    ({'batch': 9}, "batch is 9 and 'gsm8k_test_20' holds 3"),
    ({'summary': str(tmp_path / 'no')}, 'there is no summary'),
  ):
    with pytest.raises(ValueError, match=message):
      breakdown.breakdown(run_dir=tmp_path / 'run', **small | changes)


def test_command_line():
  """Catches bindings that do not reach the function, and a traceback."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.breakdown'),
      *('--gin_param', 'breakdown.breakdown.repeats = 0'),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1, done.stderr
  assert 'error: repeats is 0' in done.stderr  # behind what jax logs
  assert 'Traceback' not in done.stderr
