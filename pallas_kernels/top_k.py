"""lax.top_k that stays a top-k."""

from __future__ import annotations

import jax
from jax import lax

Array = jax.Array


def top_k(x: Array, k: int) -> tuple[Array, Array]:
  """The k largest along the last axis and their indices, lower index first.

  XLA's CPU compiler has a fast top-k, but finds it by pattern: a sort whose
  results are sliced at once. Other code that fuses with the slices breaks the
  pattern and leaves a full sort behind, ten times slower (jax 0.10.2). The
  barrier keeps it whole. Among several devices there is none: its partitioner
  would make the barrier the reader of the pair, of which XLA then dies.
  """
  rows = x.reshape(-1, x.shape[-1])
  best, index = lax.top_k(rows, k)
  if jax.sharding.get_abstract_mesh().size <= 1:
    best, index = lax.optimization_barrier((best, index))
  shape = (*x.shape[:-1], k)
  return best.reshape(shape), index.reshape(shape)
