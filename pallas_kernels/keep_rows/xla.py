"""The reference: one slice update per batch row."""

from __future__ import annotations

import jax
from jax import lax

Array = jax.Array


def keep_rows_xla(cache_LBKSH: Array, rows_LBKPH: Array, start_B: Array):
  """See `api.keep_rows`."""

  def write(b, cache_LBKSH):
    row_L1KPH = lax.dynamic_slice_in_dim(rows_LBKPH, b, 1, axis=1)
    return lax.dynamic_update_slice(
      cache_LBKSH, row_L1KPH, (0, b, 0, start_B[b], 0)
    )

  # A loop and not a vmap: a batched slice update becomes a scatter, which is
  # slower, and this one stays in place.
  return lax.fori_loop(0, cache_LBKSH.shape[1], write, cache_LBKSH)
