"""The yardstick of the baseline: greedy decoding with nothing but a loop.

Written as one would without this project: a scan over steps, a cache, argmax.
If `ar` were slower than this, its speed-ups would be bought with overhead.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cache as kv
from specjax.models.layers import unembed
from specjax.models.transformer import Weights, forward


def plain_greedy(
  weights: Weights, ids: list[int], new: int
) -> Callable[[], list[int]]:
  """A job that decodes `new` tokens after `ids` and returns them."""
  prompt = jnp.asarray([ids], jnp.int32)
  slots = kv.slots_for(len(ids) + new)

  def step(weights, carry, token_BT):
    cache, at = carry
    t = token_BT.shape[1]
    mask_BTT = jnp.tril(jnp.ones((1, t, t), bool))
    position_BT = at + jnp.arange(t)[None]
    out = forward(weights, token_BT, position_BT, cache, at[None], mask_BTT)
    logits_B1V = unembed(out.hidden_BTD[:, -1:], weights.head)
    token_B1 = jnp.argmax(logits_B1V, -1).astype(jnp.int32)
    return (kv.write(cache, out.rows, at[None]), at + t), token_B1

  @jax.jit
  def run(weights, prompt):
    cache = kv.empty(weights.config, 1, slots, weights.dtype)
    carry, first_B1 = step(weights, (cache, jnp.int32(0)), prompt)

    def body(carry, _):
      state, token_B1 = carry
      state, token_B1 = step(weights, state, token_B1)
      return (state, token_B1), token_B1

    _, rest = lax.scan(body, (carry, first_B1), None, length=new - 1)
    return jnp.concatenate([first_B1[0], rest[:, 0, 0]])

  return lambda: run(weights, prompt).tolist()
