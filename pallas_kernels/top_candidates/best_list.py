"""The best few of a long row that is seen tile by tile.

A list of C values is kept, in no order. As long as a tile's best beats the
list's worst it takes its place; most tiles of a long row change nothing. Equal
values go by column, lower first, as in `lax.top_k`.

Columns are float32, exact up to 2^24: reductions of integers are slow on TPUs.
Letters: R rows, N columns of a tile, C values kept.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
MOST_COLUMNS = 2**23  # as many again for places that are still empty


def empty(rows: int, size: int, count: int) -> tuple[Array, Array]:
  """(values, columns) float32[R, size]: no value yet, room for `count`.

  Places behind `count`, there to fill a tile, are never the worst. Columns
  differ, so that one place is the worst.
  """
  place = lax.broadcasted_iota(jnp.int32, (rows, size), 1)
  values = jnp.where(place < count, -jnp.inf, jnp.inf)
  return values, (place + MOST_COLUMNS).astype(jnp.float32)


def arrivals(x: Array, values: Array, count: int) -> Array:
  """int32 scalar: `take` so often and no value of any row's tile is left out.

  An upper bound: the list's worst rises with each value that comes.
  """
  worst = jnp.min(values, axis=1, keepdims=True)
  better = jnp.sum(jnp.where(x > worst, 1.0, 0.0), axis=1, keepdims=True)
  return jnp.minimum(jnp.max(better), count).astype(jnp.int32)


def take(x: Array, first, values: Array, columns: Array):
  """Moves each row's best value of a tile into its list, if it belongs there.

  Args:
    x: float32[R, N], the tile; a value that was taken becomes -inf.
    first: column of the tile's first value.
    values: float32[R, C], the list.
    columns: float32[R, C].

  Returns:
    x, values and columns, changed.
  """
  least = lambda mask, place: jnp.min(
    jnp.where(mask, place, jnp.inf), axis=1, keepdims=True
  )
  place = lax.broadcasted_iota(jnp.int32, x.shape, 1).astype(jnp.float32)
  top = jnp.max(x, axis=1, keepdims=True)
  at = least(x == top, place)
  worst = jnp.min(values, axis=1, keepdims=True)
  # Of equal ones the last goes.
  out = -least(values == worst, -columns)
  better = top > worst
  here = better & (columns == out)
  columns = jnp.where(here, at + first, columns)
  values = jnp.where(here, top, values)
  x = jnp.where(better & (place == at), -jnp.inf, x)
  return x, values, columns


def in_order(values: Array, columns: Array, count: int):
  """float32[R, count] and int32[R, count] of lists side by side, best first."""
  worse, columns = lax.sort((-values, columns), num_keys=2)
  return -worse[:, :count], columns[:, :count].astype(jnp.int32)
