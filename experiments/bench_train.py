"""How fast training steps are, beside what the machine's products could do.

  python -m experiments.bench_train [--turns=7]

Steps of the packaged drafters' sizes on the packaged target, in bfloat16, on
random texts; medians of interleaved turns after a warm-up. `products` is the
share of a step's time that its matrix products would take at the rate measured
in the same turn for one large product; the rest is softmax, norms, gathers and
what does not reach that rate.
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import specjax
from experiments import drafters, flops, run, shapes
from experiments.tables import aligned
from experiments.timing import interleaved
from specjax.methods import dflash, draft_model, eagle3, treeflash
from specjax.training import step
from specjax.training.batch import Batch, Fixed
from specjax.training.objectives import block, language_model
from specjax.training.objectives import draft_model as draft_model_objective
from specjax.training.objectives import eagle3 as eagle3_objective
from specjax.training.objectives import treeflash as treeflash_objective
from specjax.weights.leaves import cast

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder, or default.', flag_values=_FLAGS
)
_TURNS = flags.DEFINE_integer('turns', 7, 'Of each.', flag_values=_FLAGS)
_LENGTH = flags.DEFINE_integer(
  'length', 512, 'Tokens of a row.', flag_values=_FLAGS
)
_ROWS = flags.DEFINE_integer('rows', 8, 'Of a batch.', flag_values=_FLAGS)
LARGE = 2048  # side of the product whose rate is the measure


def texts(vocab: int, rows: int, length: int) -> Batch:
  """Random texts, all but a prompt wanted."""
  shape = (1, rows, length)
  token = np.random.default_rng(0).integers(0, vocab, shape)
  place = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), shape)
  return Batch(
    token_BT=jnp.asarray(token, jnp.int32),
    wanted_BT=place >= length // 4,
    text_BT=jnp.ones(shape, jnp.int32),
    position_BT=place,
  )


def trainings(target: Any) -> dict[str, tuple[Any, Any]]:
  """Objective and first parameters of each training, by name."""
  mask_id = target.config.vocab - 1
  wide = shapes.Block(layers=3, block=16, mask_id=mask_id)
  tree = shapes.Block(layers=3, block=16, mask_id=mask_id, treeflash=True)
  made = {
    'dflash': (
      wide,
      dflash.build,
      functools.partial(block.Block, anchors=64, gamma=0.0),
    ),
    'treeflash': (
      tree,
      treeflash.build,
      functools.partial(treeflash_objective.TreeFlash, anchors=64, gamma=0.0),
    ),
    'eagle3': (shapes.Eagle3(), eagle3.build, eagle3_objective.Eagle3),
    'draft_model': (
      shapes.Small(layers=max(target.config.layers // 3, 1)),
      draft_model.build,
      draft_model_objective.DraftModel,
    ),
  }
  found = {'target': (language_model.LanguageModel(), target)}
  for name, (shape, build, objective) in made.items():
    start = drafters.begin(shape, build, target, 0)
    found[name] = (objective(drafter=start.method.drafter), start.init())
  return found


class Step:
  """A training that goes on, one step a call."""

  def __init__(self, objective: Any, params: Any, fixed: Fixed, batch: Batch):
    optimizer = step.Optimizer(rate=1e-4, steps=1000)
    self._args = (optimizer, objective)
    self._data = (fixed, batch)
    self._state = step.begin(optimizer, objective, params, 0)
    take = functools.partial(step.update.__wrapped__, *self._args)
    self.flops = flops.matmul_flops(take, self._state, *self._data)
    one = jax.tree.map(lambda x: x[0], batch)
    mass_K = objective.mass(fixed, one, jax.random.key(0))
    self.positions = float(jnp.sum(mass_K))

  def __call__(self) -> None:
    self._state, figures = step.update(*self._args, self._state, *self._data)
    jax.block_until_ready(figures)


def bench() -> str:
  """The table that the flags ask for."""
  target = specjax.load(_TARGET.value).params.target
  low = cast(target, jnp.bfloat16)
  batch = texts(target.config.vocab, _ROWS.value, _LENGTH.value)
  steps = {
    name: Step(objective, params, Fixed(target=low), batch)
    for name, (objective, params) in trainings(target).items()
  }
  a = jnp.ones((LARGE, LARGE), jnp.bfloat16)
  product = jax.jit(
    lambda a: jnp.einsum('ij,kj->ik', a, a, preferred_element_type=jnp.float32)
  )
  calls = {'': lambda: jax.block_until_ready(product(a)), **steps}
  seconds = interleaved(calls, repeats=_TURNS.value)
  rates = [2 * LARGE**3 / spent for spent in seconds['']]
  rows = [('training', 'step', 'tokens/s', 'positions/s', 'products')]
  for name, one in steps.items():
    spent = statistics.median(seconds[name])
    shares = [
      one.flops / rate / turn
      for rate, turn in zip(rates, seconds[name], strict=True)
    ]
    rows.append(
      (
        name,
        f'{spent:.2f} s',
        f'{batch.token_BT.size / spent:.0f}',
        f'{one.positions / spent:.0f}',
        f'{statistics.median(shares):.0%}',
      )
    )
  rate = statistics.median(rates) / 1e9
  device = run.device()
  return (
    f'{aligned(rows)}\n\n{device["device"]}, {device["cpus"]} cores, '
    f'bfloat16, {_ROWS.value} x {_LENGTH.value} tokens; one product of '
    f'{LARGE} x {LARGE}: {rate:.0f} GFLOP/s.'
  )


main = run.command(lambda: print(bench()))


if __name__ == '__main__':
  app.run(main)
