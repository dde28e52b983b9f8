"""A decode state of fixed slots: rows go in, are looked at, and are replaced.

The programs of an engine: `empty`, `insert` and `look` here, `prefill` of one
row and `decode` of all. Each is compiled once, prefill once per prompt bucket.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sharding
from specjax.checks import check_whole
from specjax.decode.prefill import capacity_for
from specjax.inputs import Rows
from specjax.method import Method
from specjax.models import cache as kv
from specjax.sampling import row_keys
from specjax.types import Array, Context, DecodeState, Params, Sampling, struct

STOPS = 16  # stop ids a request may have


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What all requests of an engine share, so that none needs a new program."""

  slots: int
  context: int  # tokens of prompt and answer together
  chunk: int  # rounds between two looks
  queue: int  # requests taken beyond those in slots
  greedy_only: bool  # no noise is drawn, and no request may sample
  logprobs: bool

  def __post_init__(self):
    check_whole(1, slots=self.slots, chunk=self.chunk)
    check_whole(2, context=self.context)
    check_whole(0, queue=self.queue)

  def capacity(self, method: Method) -> int:
    """Slots of each row's cache: any prompt and answer that fit the context."""
    return capacity_for(method, self.context - 1, 1)

  def window(self, method: Method) -> int:
    """Tokens a row may get between two looks: a chunk's and the prefill's."""
    return self.chunk * method.path_rows + 1

  def law(self, sampling: Sampling) -> Sampling:
    """The same settings with this engine's static facts."""
    return sampling.replace(
      all_greedy=self.greedy_only, filtering=not self.greedy_only
    )

  def arrays(self, rows: Rows, bucket: int) -> tuple[Any, ...]:
    """A row as `prefill` takes it, in the shapes of every other."""
    arrays = rows.arrays(bucket, STOPS)
    return *arrays[:3], self.law(arrays[3]), *arrays[4:]


@struct
class Look:
  """What a host sees of a state; the window starts at the first new token."""

  token_BW: Array  # int32, garbage behind the row's length
  length_B: Array  # int32
  done_B: Array  # bool
  stopped_B: Array  # bool


@functools.partial(jax.jit, static_argnames=('method', 'plan'))
def empty(method: Method, params: Params, *, plan: Plan) -> DecodeState:
  """Slots without a request: rows of one token that are done."""
  b, capacity, target = plan.slots, plan.capacity(method), params.target
  full = lambda value, dtype: jnp.full((b,), value, dtype)
  law = Sampling(
    temperature_B=full(0, jnp.float32),
    top_k_B=full(0, jnp.int32),
    top_p_B=full(1, jnp.float32),
    min_p_B=full(0, jnp.float32),
  )
  state = DecodeState(
    context=Context(
      tokens_BT=jnp.zeros((b, capacity), jnp.int32),
      length_B=full(1, jnp.int32),
    ),
    cache=kv.empty(target.config, b, capacity, target.dtype),
    draft=method.drafter.start(params.drafter, target, b, capacity),
    key_B=row_keys([0] * b),
    sampling=plan.law(law),
    stop_BI=jnp.full((b, STOPS), -1, jnp.int32),
    limit_B=full(1, jnp.int32),
    done_B=full(True, bool),
    stopped_B=full(False, bool),
    rounds_B=full(0, jnp.int32),
    walk_BR=jnp.zeros((b, capacity), jnp.int32),
    logprob_BT=jnp.zeros((b, capacity), jnp.float32) if plan.logprobs else None,
  )
  return sharding.constrained(state)


@functools.partial(jax.jit, donate_argnames=('state',))
def insert(state: DecodeState, row: DecodeState, slot: Array) -> DecodeState:
  """The state with a batch of one in a slot; `state` is donated.

  Every leaf is replaced whole, dead cache rows and the drafter's state too, so
  nothing of the slot's last request is left.

  Raises:
    ValueError: a leaf without one batch axis, such as a drafter's state that
      is common to all rows.
  """
  if state.done_B.shape == row.done_B.shape:
    return row  # the only slot
  put = lambda x, one: lax.dynamic_update_slice_in_dim(
    x, one, slot, batch_axis(x.shape, one.shape)
  )
  return sharding.constrained(jax.tree.map(put, state, row))


def batch_axis(many: tuple[int, ...], one: tuple[int, ...]) -> int:
  """Where a leaf of several rows differs from the same leaf of one row.

  A cache has layers first, other leaves the batch.

  Raises:
    ValueError: they differ in no axis, or in several.
  """
  axes = [i for i, (a, b) in enumerate(zip(many, one, strict=True)) if a != b]
  if len(axes) != 1:
    raise ValueError(
      f'a state of shape {many} cannot hold rows of {one}: one axis, and only '
      'one, must be the batch. What is common to all rows belongs in params.'
    )
  return axes[0]


@functools.partial(jax.jit, static_argnames=('width',))
def look(state: DecodeState, seen_B: Array, *, width: int) -> Look:
  """Tokens from `seen` on, and which rows have ended.

  Args:
    state: not donated.
    seen_B: int32, tokens of each row that the host has.
    width: static; as many as a row may have got.
  """
  token_BT = state.context.tokens_BT
  at_BW = seen_B[:, None] + jnp.arange(width)
  at_BW = jnp.minimum(at_BW, token_BT.shape[1] - 1)
  return Look(
    token_BW=jnp.take_along_axis(token_BT, at_BW, axis=1),
    length_B=state.context.length_B,
    done_B=state.done_B,
    stopped_B=state.stopped_B,
  )


@jax.jit
def record(state: DecodeState, slot: Array) -> tuple[Array, Array, Any]:
  """(rounds, walk_R, logprob_T) of a slot, read once its request has ended."""
  logprob_BT = state.logprob_BT
  return (
    state.rounds_B[slot],
    state.walk_BR[slot],
    None if logprob_BT is None else logprob_BT[slot],
  )
