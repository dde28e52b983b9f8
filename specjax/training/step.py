"""One optimiser step: micro-batches, float32 master weights, a guard."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from specjax.checks import check_whole, number
from specjax.training.batch import Batch, Fixed, Objective
from specjax.types import Array, struct
from specjax.weights.leaves import cast, floating


@struct
class TrainState:
  """What a step takes and returns; all of it is saved."""

  params: Any  # float32
  moments: Any  # the optimiser's
  step: Array  # int32, steps done
  key: Array  # of the run; every draw is keyed by it and by the step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
  """AdamW with a linear warm-up and a cosine to zero.

  Loshchilov & Hutter, arXiv:1711.05101; schedule and clip as DFlash's and
  EAGLE-3's trainings have them. Norms and biases (leaves of one axis beside
  that of the stack) do not decay.
  """

  rate: float  # the highest learning rate
  steps: int
  warm_up: float = 0.04  # share of the steps
  floor: float = 0.0  # share of the rate that is left at the end
  clip: float = 1.0  # of the global gradient norm
  b1: float = 0.9
  b2: float = 0.999
  decay: float = 0.0

  def __post_init__(self):
    check_whole(1, steps=self.steps)
    for name in ('rate', 'clip'):
      value = getattr(self, name)
      if not number(value) or value <= 0:
        raise ValueError(f'{name} is {value!r}; give a number above 0.')
    for name in ('warm_up', 'floor', 'b1', 'b2', 'decay'):
      value = getattr(self, name)
      if not number(value) or not 0 <= value <= 1:
        raise ValueError(f'{name} is {value!r}; give a number from 0 to 1.')

  def schedule(self) -> optax.Schedule:
    """The learning rate of each step, the first being 0."""
    warm = min(max(round(self.warm_up * self.steps), 1), self.steps)
    return optax.warmup_cosine_decay_schedule(
      self.rate / warm,
      self.rate,
      warm,
      max(self.steps, warm + 1),
      end_value=self.floor * self.rate,
    )

  def transform(
    self, params: Any, frozen: Sequence[str] = ()
  ) -> optax.GradientTransformation:
    """The update rule for these parameters; `frozen` fields get none."""
    tx = optax.chain(
      optax.clip_by_global_norm(self.clip),
      optax.adamw(
        self.schedule(),
        b1=self.b1,
        b2=self.b2,
        weight_decay=self.decay,
        mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
      ),
    )
    if not frozen:
      return tx
    return optax.partition(
      {'train': tx, 'keep': optax.set_to_zero()}, _labels(params, frozen)
    )


def begin(
  optimizer: Optimizer, objective: Objective, params: Any, seed: int
) -> TrainState:
  """Before the first step; leaves of whole numbers stay as they are.

  Everything is copied: steps take their state's memory, and some of what is
  given here may be the target's own.
  """
  params = jax.tree.map(jnp.array, cast(params, 'float32'))
  learned, _ = _split(params)
  tx = optimizer.transform(learned, objective.frozen)
  return TrainState(
    params=params,
    moments=tx.init(learned),
    step=jnp.int32(0),
    key=jax.random.key(seed),
  )


@functools.partial(
  jax.jit,
  static_argnames=('optimizer', 'objective', 'dtype'),
  donate_argnames=('state',),
)
def update(
  optimizer: Optimizer,
  objective: Objective,
  state: TrainState,
  fixed: Fixed,
  batches: Batch,
  *,
  dtype: str = 'bfloat16',
) -> tuple[TrainState, dict[str, Array]]:
  """One step over micro-batches.

  Args:
    optimizer: static, as are `objective` and `dtype`.
    objective: what is minimised.
    state: is donated.
    fixed: its target in the dtype of compute.
    batches: every array with a leading axis, one entry per micro-batch.
    dtype: of compute; parameters, gradients and their sums are float32.

  Returns:
    The next state, and figures: `loss`, `grad_norm`, `rate` and the
    objective's own. Where loss or gradient is not finite, the state is the one
    given: nothing is lost.
  """
  step_key = jax.random.fold_in(state.key, state.step)
  count = jax.tree.leaves(batches)[0].shape[0]
  key_M = jax.vmap(lambda i: jax.random.fold_in(step_key, i))(jnp.arange(count))
  mass_MK = lax.map(lambda x: objective.mass(fixed, *x), (batches, key_M))
  mass_K = jnp.maximum(jnp.sum(mass_MK, axis=0), 1e-9)
  learned, rest = _split(state.params)

  def loss_of(learned, batch, key):
    params = _join(cast(learned, dtype), rest)
    return objective.loss(params, fixed, batch, key, mass_K)

  def sums(batch, key):
    (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(
      learned, batch, key
    )
    return loss, metrics, grads

  zero = jax.tree.map(
    lambda x: jnp.zeros(x.shape[1:], x.dtype),
    jax.eval_shape(jax.vmap(sums), batches, key_M),
  )
  add = lambda total, x: (jax.tree.map(jnp.add, total, sums(*x)), None)
  (loss, metrics, grads), _ = lax.scan(add, zero, (batches, key_M))
  tx = optimizer.transform(learned, objective.frozen)
  changes, moments = tx.update(grads, state.moments, learned)
  norm = optax.global_norm(grads)
  fine = jnp.isfinite(loss) & jnp.isfinite(norm)
  keep = lambda new, old: jnp.where(fine, new, old)
  learned = jax.tree.map(keep, optax.apply_updates(learned, changes), learned)
  figures = {
    name: pair[0] / jnp.maximum(pair[1], 1e-9) for name, pair in metrics.items()
  }
  return TrainState(
    params=_join(learned, rest),
    moments=jax.tree.map(keep, moments, state.moments),
    step=state.step + fine,
    key=state.key,
  ), figures | {
    'loss': loss,
    'grad_norm': norm,
    'rate': optimizer.schedule()(state.step),
  }


def _split(params: Any) -> tuple[Any, Any]:
  """(learned, rest): floating-point leaves and the others, None for absent."""
  return (
    jax.tree.map(lambda x: x if floating(x) else None, params),
    jax.tree.map(lambda x: None if floating(x) else x, params),
  )


def _join(learned: Any, rest: Any) -> Any:
  return jax.tree.map(
    lambda a, b: b if a is None else a,
    learned,
    rest,
    is_leaf=lambda x: x is None,
  )


def _labels(params: Any, frozen: Sequence[str]) -> Any:
  """'keep' below the frozen fields, 'train' elsewhere."""
  top = lambda path: jax.tree_util.keystr(path[:1]).strip('.')
  names = {f.name for f in dataclasses.fields(params)}
  if wrong := set(frozen) - names:
    raise ValueError(
      f'frozen names {sorted(wrong)}; these parameters have {sorted(names)}.'
    )
  return jax.tree_util.tree_map_with_path(
    lambda path, _: 'keep' if top(path) in frozen else 'train', params
  )
