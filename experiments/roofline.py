"""Prediction, never measurement: what a round should cost on a device.

  python -m experiments.roofline --target=qwen3-8b --device=h200 \
    --method=dflash --nodes=16 --accepted=7.83

Prints milliseconds of a plain step and of a round, and the speed-up. The model
is `experiments/roofline_model.py`; `experiments/figures/prediction.py` predicts
the rows of the published tables.
"""

from __future__ import annotations

import sys

from absl import app, flags

from experiments import roofline_presets as presets
from experiments import run
from experiments.roofline_model import Setting
from experiments.roofline_rounds import Prediction, predict

TITLE = 'Prediction by a roofline model, not a measurement'

_FLAGS = run.flag_values(__name__)


def _flag(define, name: str, default, text: str):
  return define(name, default, text, flag_values=_FLAGS)


_TARGET = _flag(
  flags.DEFINE_string, 'target', 'qwen3-8b', 'A preset or a config.json.'
)
_DEVICE = _flag(
  flags.DEFINE_string, 'device', 'h200', f'{", ".join(presets.DEVICES)}.'
)
_METHOD = _flag(
  flags.DEFINE_string, 'method', 'dflash', f'{", ".join(presets.METHODS)}.'
)
_NODES = _flag(
  flags.DEFINE_integer, 'nodes', None, 'Rows verified, root included.'
)
_ACCEPTED = _flag(
  flags.DEFINE_float, 'accepted', 1.0, 'Mean tokens a round emits.'
)
_BATCH = _flag(flags.DEFINE_integer, 'batch', 1, 'Rows decoded together.')
_CONTEXT = _flag(flags.DEFINE_integer, 'context', 512, 'Tokens in the cache.')
_DEPTH = _flag(
  flags.DEFINE_integer, 'depth', None, 'Of EAGLE-3, lookup, draft_model.'
)
_WIDTH = _flag(
  flags.DEFINE_integer, 'width', None, 'Nodes EAGLE-3 continues per level.'
)
_DRAFTER = _flag(
  flags.DEFINE_string, 'drafter', 'qwen3-1.7b', 'Of draft_model; as target.'
)
_DRAFT_VOCAB = _flag(
  flags.DEFINE_integer, 'draft_vocab', None, "Rows of the drafter's head."
)
_GB_S = _flag(flags.DEFINE_float, 'gb_s', None, 'Memory, 1e9 bytes/s.')
_TFLOP_S = _flag(flags.DEFINE_float, 'tflop_s', None, 'Dense bf16, 1e12/s.')
_LAUNCH_US = _flag(flags.DEFINE_float, 'launch_us', None, 'Per kernel.')
_BOOKKEEPING_US = _flag(
  flags.DEFINE_float, 'bookkeeping_us', 50.0, 'Per round: tree, walk, writes.'
)


def as_text(found: Prediction) -> str:
  """The figures of one prediction, labelled as such."""
  lines = [
    ('plain step', found.plain_ms, 'ms'),
    ('round', found.round_ms, 'ms'),
    ('  drafter', found.draft_ms, 'ms'),
    ('  target', found.verify_ms, 'ms'),
    ('  bookkeeping', found.bookkeeping_ms, 'ms'),
    ('speed-up', found.speed_up, 'x'),
    ('throughput', found.tokens_per_s, 'tokens/s'),
  ]
  rows = [f'{name:<14}{value:>11.3f} {unit}' for name, value, unit in lines]
  return '\n'.join([TITLE, *rows])


def main(argv: list[str]) -> None:
  if argv[1:]:
    sys.exit(f'unexpected argument {argv[1]!r}.')
  try:
    print(as_text(_one()))
  except ValueError as e:
    sys.exit(str(e))


def _one() -> Prediction:
  target = presets.target_of(_TARGET.value)
  device = presets.device_of(
    _DEVICE.value,
    gb_s=_GB_S.value,
    tflop_s=_TFLOP_S.value,
    launch_us=_LAUNCH_US.value,
  )
  drafter = presets.drafter_of(
    _METHOD.value,
    target,
    depth=_DEPTH.value,
    width=_WIDTH.value,
    model=presets.target_of(_DRAFTER.value),
  )
  nodes = _NODES.value
  if nodes is None:
    own = drafter.depth + 1 if drafter else 1
    nodes = presets.NODES.get(_METHOD.value, own)
  at = Setting(
    nodes=nodes,
    accepted=_ACCEPTED.value,
    batch=_BATCH.value,
    context=_CONTEXT.value,
    draft_vocab=_DRAFT_VOCAB.value,
    bookkeeping_us=_BOOKKEEPING_US.value,
  )
  return predict(target, drafter, device, at)


if __name__ == '__main__':
  app.run(main)
