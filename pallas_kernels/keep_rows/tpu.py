"""Rows into the cache on TPUs, where memory comes in tiles of rows.

A window of whole tiles around the rows is read, changed on the chip, and
written back.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import dispatch

Array = jax.Array
TILE = 32  # rows: a whole number of tiles for 16 and 32 bits


def refuses(cache_LBKSH, rows_LBKPH, start_B) -> str | None:
  """Why this backend cannot do a call of `api.keep_rows`, or None."""
  del start_B
  s = cache_LBKSH.shape[3]
  allowed = jnp.bfloat16, jnp.float32
  if why := dispatch.dtypes_refused(allowed, ('the cache', cache_LBKSH)):
    return why
  if s % TILE:
    return f'a capacity of {s} slots is no multiple of {TILE}'
  if window_for(rows_LBKPH.shape[3]) > s:
    return f'{rows_LBKPH.shape[3]} rows and a tile are more than {s} slots'
  return None


def window_for(rows: int) -> int:
  """Slots of whole tiles that hold so many rows, wherever they begin."""
  return -(-rows // TILE) * TILE + TILE


def keep_rows_tpu(
  cache_LBKSH: Array,
  rows_LBKPH: Array,
  start_B: Array,
  *,
  interpret: bool | pltpu.InterpretParams = False,
) -> Array:
  """See `api.keep_rows`. The cache's buffer is the result's."""
  layers, b, k, s, h = cache_LBKSH.shape
  p = rows_LBKPH.shape[3]
  window = window_for(p)
  pad = ((0, 0), (0, 0), (0, 0), (0, window - p), (0, 0))
  return pl.pallas_call(
    functools.partial(_kernel, rows=p, slots=s),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(layers, b, k),
      in_specs=[
        pl.BlockSpec(
          (None, None, None, window, h), lambda i, j, n, start: (i, j, n, 0, 0)
        ),
        pl.BlockSpec(memory_space=pl.ANY),
      ],
      out_specs=pl.BlockSpec(memory_space=pl.ANY),
      scratch_shapes=[
        pltpu.VMEM((window, h), cache_LBKSH.dtype),
        pltpu.SemaphoreType.DMA,
      ],
    ),
    out_shape=jax.ShapeDtypeStruct(cache_LBKSH.shape, cache_LBKSH.dtype),
    input_output_aliases={2: 0},
    interpret=interpret,
    name='keep_rows',
  )(start_B, jnp.pad(rows_LBKPH, pad), cache_LBKSH)


def _kernel(
  start_ref,  # int32[B], on the scalar core
  rows_ref,  # [window, H], the rows first
  cache_ref,  # [L, B, K, S, H], off the chip; the output's buffer
  out_ref,  # [L, B, K, S, H]
  window_ref,  # [window, H]
  done,
  *,
  rows: int,
  slots: int,
):
  del cache_ref
  layer, batch, head = (pl.program_id(i) for i in range(3))
  window, h = window_ref.shape
  start = start_ref[batch]
  first = jnp.minimum(start // TILE * TILE, slots - window)
  first = pl.multiple_of(first, TILE)
  place = out_ref.at[layer, batch, head, pl.ds(first, window)]

  def copy(source, target):
    moved = pltpu.make_async_copy(source, target, done)
    moved.start()
    moved.wait()

  copy(place, window_ref)
  at = lax.broadcasted_iota(jnp.int32, (window, h), 0) - (start - first)
  # Only 32-bit rows can be moved by a number that is not known in advance.
  moved = pltpu.roll(rows_ref[...].astype(jnp.float32), start - first, 0)
  moved = moved.astype(window_ref.dtype)
  window_ref[...] = jnp.where((at >= 0) & (at < rows), moved, window_ref[...])
  copy(window_ref, place)
