"""The roofline model: every term by hand, sizes against public totals."""

import dataclasses
import itertools
import pathlib
import subprocess
import sys

import pytest

from experiments import roofline_presets
from experiments import roofline_published as published
from experiments.roofline_model import (
  BYTES,
  Device,
  Setting,
  experts_read,
  layers,
  target_pass,
)
from experiments.roofline_presets import DEVICES, TARGETS, drafter_of
from experiments.roofline_rounds import predict
from specjax.models.config import tiny

ROOT = pathlib.Path(__file__).parents[2]
EMPTY = Setting(context=0)


def test_one_pass_by_hand():
  """Catches a forgotten term, a factor of two, keys without values, a sum
  where the maximum belongs, and a wrong unit of any device figure."""
  net = tiny(
    vocab=7, width=4, layers=2, q_heads=2, kv_heads=1, head_dim=3, mlp=5
  )
  cost = target_pass(net, Setting(batch=2, context=10), 3)
  weights = 2 * (4 * (6 + 6) + 6 * 4 + 3 * 4 * 5) + 7 * 4
  assert weights == 292
  assert cost.bytes == 2 * 292 + 2 * 2 * 2 * 6 * (10 + 3)
  assert cost.flops == 2 * 292 * 6 + 2 * 4 * 6 * 13 * 6
  assert cost.launches == 2 * 10 + 3
  slow_chip = Device(gb_s=1e-6, tflop_s=1e-9, launch_us=1e6)
  assert cost.ms(slow_chip) == pytest.approx(7248 + 23000)
  slow_memory = Device(gb_s=1e-6, tflop_s=1e9, launch_us=0)
  assert cost.ms(slow_memory) == pytest.approx(1208)


def test_one_round_by_hand():
  """Catches tokens that count twice, a step that lacks a part of the round,
  and bookkeeping in the wrong unit."""
  target, device = TARGETS['qwen3-4b'], DEVICES['h200']
  drafter = drafter_of('dflash', target)
  at = Setting(nodes=16, accepted=5.0, bookkeeping_us=70)
  found = predict(target, drafter, device, at)
  (once,) = drafter.passes(target, at)
  total = once.ms(device) + target_pass(target, at, 16).ms(device) + 0.07
  assert found.round_ms == pytest.approx(total)
  step = target_pass(target, at, 1).ms(device)
  assert found.speed_up == pytest.approx(5 * step / total)
  assert found.tokens_per_s == pytest.approx(5000 / total)


@pytest.mark.parametrize('batch', [1, 8])
@pytest.mark.parametrize('target', TARGETS)
def test_plain_decoding_is_one(target, batch):
  at = Setting(batch=batch)
  for device in DEVICES.values():
    assert predict(TARGETS[target], None, device, at).speed_up == 1


@pytest.mark.parametrize('target', ['qwen3-8b', 'qwen3-30b-a3b'])
def test_more_rows_and_more_context_cost_more(target):
  """Catches a sign, and experts that are read per row or never."""
  for device in DEVICES.values():
    for batch in (1, 8):
      ms = lambda nodes, context, d=device, b=batch: target_pass(
        TARGETS[target], Setting(batch=b, context=context), nodes
      ).ms(d)
      rows = [ms(n, 512) for n in (1, 2, 16, 65, 257, 513)]
      contexts = [ms(16, s) for s in (0, 1, 512, 4096, 32768)]
      for series in (rows, contexts):
        assert all(a < b for a, b in itertools.pairwise(series))


def test_experts_that_rows_touch():
  """The formula is the mean over all choices, counted one by one."""
  subsets = list(itertools.combinations(range(4), 2))
  for rows in (1, 2, 3):
    unions = [
      len(set().union(*choice))
      for choice in itertools.product(subsets, repeat=rows)
    ]
    mean = sum(unions) / len(unions)
    assert experts_read(4, 2, rows) == pytest.approx(mean)
  assert experts_read(128, 8, 1) == pytest.approx(8)
  moe = TARGETS['qwen3-30b-a3b']
  read = [target_pass(moe, EMPTY, n).bytes / BYTES for n in (1, 3000)]
  assert read == pytest.approx([3.04e9, 30.22e9 + 49152 * 3000], rel=0.003)
  once = target_pass(moe, dataclasses.replace(EMPTY, batch=4), 2)
  assert once.bytes == pytest.approx(target_pass(moe, EMPTY, 8).bytes)


@pytest.mark.parametrize(
  'target, billions',
  [('qwen3-0.6b', 0.44), ('qwen3-4b', 3.6), ('qwen3-8b', 6.95)],
)
def test_targets_have_their_public_sizes(target, billions):
  """Model cards: parameters without embedding."""
  size = layers(TARGETS[target], EMPTY, 0).bytes / BYTES
  assert size == pytest.approx(billions * 1e9, rel=0.011)


@pytest.mark.parametrize(
  'method, target, size',
  [
    ('dflash', 'qwen3-4b', 537_427_200),
    ('dflash', 'llama-3.1-8b', 1_048_626_432),
    ('eagle3', 'qwen3-4b', 218.2e6),
    ('eagle3', 'qwen3-8b', 399.5e6),
    ('eagle3', 'llama-3.1-8b', 424.7e6),
  ],
)
def test_drafters_have_their_public_sizes(method, target, size):
  """Checkpoint totals. Catches a missing fusion, inputs of one width, another
  head, and the LLaMA drafter with its target's MLP."""
  net = TARGETS[target]
  first = drafter_of(method, net).passes(net, EMPTY)[0]
  shared = net.vocab * net.width if method == 'dflash' else 0
  assert first.bytes / BYTES - shared == pytest.approx(size, rel=1e-3)


def test_treeflash_corrects_and_reads_the_head_again():
  net = TARGETS['qwen3-4b']
  (plain,) = drafter_of('dflash', net).passes(net, EMPTY)
  first, second = drafter_of('treeflash', net).passes(net, EMPTY)
  assert first == plain
  weights = 5 * 2560 * 9728 + 151936 * 2560
  assert second.bytes == BYTES * weights
  assert second.flops == 2 * weights * (14 * 16 + 1)


def test_passes_and_trimmed_heads():
  """One pass per level and per draft; what a trimmed head saves, exactly."""
  net = TARGETS['qwen3-4b']
  trimmed = dataclasses.replace(EMPTY, draft_vocab=8192)
  for method, count, rows, width in (
    ('eagle3', 7, 32000, 2560),
    ('draft_model', 4, 151936, 2048),
    ('dflash', 1, 151936, 2560),
    ('treeflash', 2, 151936, 2560),
  ):
    drafter = drafter_of(method, net)
    whole, cut = drafter.passes(net, EMPTY), drafter.passes(net, trimmed)
    assert len(whole) == len(cut) == count
    for a, b in zip(whole, cut, strict=True):
      assert a.bytes - b.bytes == BYTES * width * (rows - 8192)
  assert drafter_of('lookup', net).passes(net, EMPTY) == ()


@pytest.mark.parametrize(
  'target, rows, ms',
  [
    ('qwen3-4b', 128, 33.84),
    ('qwen3-4b', 512, 48.53),
    ('qwen3-8b', 1, 35.02),
    ('qwen3-8b', 256, 41.44),
    ('qwen3-8b', 512, 63.23),
  ],
)
def test_near_a_public_measurement(target, rows, ms):
  """CaDDTree's released cost model: an A800, 1000 tokens, eager PyTorch. One
  figure set the launch; the others must follow within 15 %."""
  eager = roofline_presets.device_of(
    'a800', launch_us=roofline_presets.EAGER_LAUNCH_US
  )
  cost = target_pass(TARGETS[target], Setting(context=1000), rows)
  assert cost.ms(eager) == pytest.approx(ms, rel=0.15)


def test_every_published_row_is_predicted_or_says_why_not():
  """Catches rows that get lost, and settings of another row or study."""
  tables = published.read()
  rows = published.compare(tables)
  assert [(r.table, r.method) for r in rows] == [
    (table, row['method']) for table, row in tables
  ]
  out = [r for r in rows if r.prediction is None]
  assert {r.table for r in out} == {'med_throughput'} and len(out) == 22
  assert all(r.note.startswith('left out: ') for r in out)
  assert len(rows) - len(out) == 82
  find = lambda **want: [
    r for r in rows if all(getattr(r, k) == x for k, x in want.items())
  ]
  taps = find(method='DDTree', device='a800')
  assert len(taps) == 3 and {r.nodes for r in taps} == {513}
  llama = find(method='DFlash', target='LLaMA-3.1-8B-Instruct', device='a40')
  assert [(r.nodes, r.published, r.accepted) for r in llama] == [
    (10, 2.64, 3.86)
  ]
  tree = find(method='TreeFlash', target='Qwen3-8B', temperature='0', nodes=64)
  assert [(r.device, r.accepted) for r in tree] == [('gh200', 11.02)]
  busy = find(method='Draft-OPD', target='Qwen3-4B', batch=32)
  assert [(r.unit, r.published) for r in busy] == [('tokens/s', 10943)]
  target = TARGETS['qwen3-8b']
  again = predict(
    target,
    drafter_of('treeflash', target),
    DEVICES['gh200'],
    Setting(nodes=64, accepted=11.02),
  )
  assert tree[0].prediction == again.speed_up
  assert tree[0].left == pytest.approx(1 - 7.99 / again.speed_up)


@pytest.mark.parametrize(
  'change',
  [{'hardware': 'X1'}, {'method': 'Y'}, {'target': 'Z'}],
)
def test_unknown_rows_are_left_out(change):
  row = next(row for table, row in published.read() if row['hardware'])
  (found,) = published.compare([('math500_speedup', row | change)])
  assert found.prediction is None and found.note.startswith('left out: ')


def test_command_line():
  """The example of the module, and a faulty one, from a shell."""
  command = [sys.executable, '-m', 'experiments.roofline', '--method=dflash']
  call = lambda *more: subprocess.run(
    [*command, *more], capture_output=True, text=True, cwd=ROOT, check=False
  )
  good = call('--target=qwen3-8b', '--device=h200', '--accepted=7.83')
  assert good.returncode == 0, good.stderr
  assert good.stdout.startswith('Prediction')
  assert 'speed-up            6.421 x' in good.stdout
  bad = call('--accepted=17')
  assert bad.returncode == 1 and bad.stderr.startswith('accepted is 17.0;')


@pytest.mark.parametrize(
  'change, word',
  [
    ({'nodes': 0}, 'nodes'),
    ({'batch': 1.5}, 'batch'),
    ({'context': -1}, 'context'),
    ({'draft_vocab': 0}, 'draft_vocab'),
    ({'accepted': 16.5}, 'accepted'),
    ({'accepted': 0.5}, 'accepted'),
    ({'bookkeeping_us': -1.0}, 'bookkeeping_us'),
  ],
)
def test_settings_that_cannot_be(change, word):
  target = TARGETS['qwen3-4b']
  at = dataclasses.replace(Setting(nodes=65, accepted=4.0), **change)
  with pytest.raises(ValueError, match=word):
    predict(target, drafter_of('ddtree', target), DEVICES['h200'], at)
  with pytest.raises(ValueError, match='gb_s'):
    predict(target, None, Device(gb_s=0, tflop_s=1), Setting())


def test_unknown_names():
  for wrong in (
    lambda: roofline_presets.target_of('qwen9'),
    lambda: roofline_presets.device_of('h9'),
    lambda: drafter_of('medusa', TARGETS['qwen3-4b']),
  ):
    with pytest.raises(ValueError, match='choose'):
      wrong()
