"""Rows into the cache on Ampere, Ada and Hopper: one launch for all of them.

XLA's form is one slice update per sequence.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

Array = jax.Array
ROWS = 32  # written at a time


def refuses(cache_LBKSH, rows_LBKPH, start_B) -> str | None:
  """Why this backend cannot do a call of `api.keep_rows`, or None."""
  del rows_LBKPH, start_B
  if cache_LBKSH.size >= 2**31:  # Pallas counts offsets in 32 bits
    return f'a cache of {cache_LBKSH.shape} has 2^31 values or more'
  return None


def keep_rows_triton(
  cache_LBKSH: Array,
  rows_LBKPH: Array,
  start_B: Array,
  *,
  interpret: bool = False,
) -> Array:
  """See `api.keep_rows`. The cache's buffer is the result's."""
  layers, b, k, s, h = cache_LBKSH.shape
  p = rows_LBKPH.shape[3]
  wide = pl.next_power_of_2(h)
  # An axis of layers, sequences and KV heads.
  flat = lambda x: x.reshape(-1, *x.shape[3:])
  cache = pl.BlockSpec((None, s, wide), lambda i: (i, 0, 0))
  out = pl.pallas_call(
    functools.partial(_kernel, shape=(p, h)),
    grid=(layers * b * k,),
    in_specs=[
      pl.BlockSpec((None,), lambda i: (i // k % b,)),
      pl.BlockSpec((None, p, wide), lambda i: (i, 0, 0)),
      cache,
    ],
    out_specs=cache,
    out_shape=jax.ShapeDtypeStruct((layers * b * k, s, h), cache_LBKSH.dtype),
    input_output_aliases={2: 0},
    compiler_params=pltriton.CompilerParams(num_warps=4, num_stages=1),
    interpret=interpret,
    name='keep_rows',
  )(start_B, flat(rows_LBKPH), flat(cache_LBKSH))
  return out.reshape(cache_LBKSH.shape)


def _kernel(
  start_ref,  # int32[]
  rows_ref,  # [P, wide]
  cache_ref,  # [S, wide], not read: it is the output
  out_ref,  # [S, wide]
  *,
  shape: tuple[int, int],
):
  del cache_ref
  p, h = shape
  wide = rows_ref.shape[1]
  real = (jnp.arange(wide) < h)[None, :]

  def put(i, _):
    there = (i * ROWS + jnp.arange(ROWS) < p)[:, None] & real
    rows = pltriton.load(
      rows_ref.at[pl.ds(i * ROWS, ROWS), :], mask=there, other=0
    )
    to = out_ref.at[pl.ds(start_ref[()] + i * ROWS, ROWS), :]
    pltriton.store(to, rows, mask=there)
    return 0

  lax.fori_loop(0, pl.cdiv(p, ROWS), put, 0)
