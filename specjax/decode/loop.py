"""Rounds on the device until every row is done."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from specjax.decode.round import speculative_round
from specjax.method import Method
from specjax.types import DecodeState, Params, Records


@functools.partial(
  jax.jit,
  static_argnames=('method', 'max_rounds', 'observe'),
  donate_argnames=('state',),
)
def decode(
  method: Method,
  params: Params,
  state: DecodeState,
  *,
  max_rounds: int | None = None,
  observe: Callable | None = None,
) -> tuple[DecodeState, Records | None]:
  """Repeats rounds in one compiled loop; `state` is donated.

  Args:
    method: static.
    params: target, drafter and tree parameters.
    state: from `prefill`, or from an earlier call.
    max_rounds: stop after so many rounds, to look at what there is and go on.
    observe: static `f(tree, logits_BNV, verdict) -> pytree`; its results are
      written to buffers of `max_rounds` entries on the device.

  Returns:
    The state, and `Records` where an observer was given.

  Raises:
    ValueError: an observer without `max_rounds`, whose buffer has no size.
  """
  if observe is None:

    def step(carry):
      count, state = carry
      return count + 1, speculative_round(method, params, state)[0]

    count, state = lax.while_loop(
      lambda carry: _more(carry[0], carry[1], max_rounds),
      step,
      (jnp.int32(0), state),
    )
    return state, None

  if max_rounds is None:
    raise ValueError('observe needs max_rounds: its records have a fixed size.')
  shape = jax.eval_shape(
    lambda s: speculative_round(method, params, s, observe)[1], state
  )
  values = jax.tree.map(
    lambda x: jnp.zeros((max_rounds, *x.shape), x.dtype), shape
  )

  def observed_step(carry):
    count, state, values = carry
    state, record = speculative_round(method, params, state, observe)
    put = lambda buffer, x: lax.dynamic_update_index_in_dim(buffer, x, count, 0)
    return count + 1, state, jax.tree.map(put, values, record)

  count, state, values = lax.while_loop(
    lambda carry: _more(carry[0], carry[1], max_rounds),
    observed_step,
    (jnp.int32(0), state, values),
  )
  return state, Records(count=count, values=values)


def _more(count, state: DecodeState, max_rounds: int | None):
  alive = ~jnp.all(state.done_B)
  return alive if max_rounds is None else alive & (count < max_rounds)
