"""Writes the accepted rows of a round into the cache, in place."""

from __future__ import annotations

from collections.abc import Sequence

import chex
import jax

from pallas_kernels import dispatch
from pallas_kernels.keep_rows import tpu, triton
from pallas_kernels.keep_rows.xla import keep_rows_xla

Array = jax.Array
BACKENDS = (
  dispatch.triton(triton.keep_rows_triton, triton.refuses),
  dispatch.tpu(tpu.keep_rows_tpu, tpu.refuses),
  dispatch.Backend(name='xla', run=keep_rows_xla),
)


def keep_rows(
  cache_LBKSH: Array,
  rows_LBKPH: Array,
  start_B: Array,
  *,
  backend: str | Sequence[str] | None = None,
) -> Array:
  """cache[:, b, :, start_b : start_b + P] = rows[:, b].

  The caller answers for start + P <= S: JAX would clamp a start that is too
  large and overwrite committed rows without a word.

  Args:
    cache_LBKSH: one of a cache's two arrays.
    rows_LBKPH: rows in path order; those past the accepted length are garbage
      that the cache's length hides.
    start_B: int32, first slot written per row.
    backend: 'triton' (Ampere and later), 'tpu', 'xla'; None, a name or names
      in order, see `dispatch.call`.

  Raises:
    ValueError: unknown backend.
    NotImplementedError: a backend that was asked for cannot do this call.
  """
  layers, b, k, _, h = cache_LBKSH.shape
  chex.assert_shape(rows_LBKPH, (layers, b, k, None, h))
  chex.assert_shape(start_B, (b,))
  return dispatch.call(
    'keep_rows',
    BACKENDS,
    backend,
    cache_LBKSH,
    rows_LBKPH.astype(cache_LBKSH.dtype),
    start_B,
  )
