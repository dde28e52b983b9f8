"""The KV cache: head-major, read by a forward pass, written after it.

A forward pass never writes: it returns the keys and values of its rows, and
the loop writes the accepted ones at the committed length. So a rejected draft
leaves no trace, and no roll-back exists to be forgotten.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.models.config import ModelConfig
from specjax.ops import keep_rows
from specjax.types import Array, struct

SLOT = 128  # kernels want whole tiles of slots


@struct
class KVCache:
  """Keys (rotated) and values of committed tokens.

  How many slots of a row are live is not stored: it is the committed length,
  which the context knows.
  """

  k_LBKSH: Array
  v_LBKSH: Array

  @property
  def capacity(self) -> int:
    return self.k_LBKSH.shape[3]


def slots_for(tokens: int) -> int:
  """The smallest capacity that holds so many tokens."""
  return -(-tokens // SLOT) * SLOT


def empty(
  config: ModelConfig, batch: int, capacity: int, dtype, layers: int = 0
) -> KVCache:
  """A cache without content."""
  shape = (layers or config.layers, batch, config.kv_heads, capacity)
  zeros = lambda: jnp.zeros((*shape, config.head_dim), dtype)
  return KVCache(k_LBKSH=zeros(), v_LBKSH=zeros())


def write(cache: KVCache, rows: KVCache, start_B: Array) -> KVCache:
  """Writes P rows per sequence from slot `start` on.

  Capacity is the caller's promise (start + P <= S), given before any long work
  by `decode.prefill.capacity_for`.
  """
  return KVCache(
    k_LBKSH=keep_rows(cache.k_LBKSH, rows.k_LBKSH, start_B),
    v_LBKSH=keep_rows(cache.v_LBKSH, rows.v_LBKSH, start_B),
  )


def select(rows: KVCache, index_BP: Array) -> KVCache:
  """The rows of a path, in its order; an index of -1 gives garbage."""
  index_BP = jnp.maximum(index_BP, 0)
  pick = jax.vmap(lambda x_LKNH, i_P: jnp.take(x_LKNH, i_P, axis=2), (1, 0), 1)
  return KVCache(
    k_LBKSH=pick(rows.k_LBKSH, index_BP), v_LBKSH=pick(rows.v_LBKSH, index_BP)
  )


def concat(a: KVCache | None, b: KVCache) -> KVCache:
  """Rows of `a` followed by rows of `b`."""
  if a is None:
    return b
  return jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=3), a, b)
