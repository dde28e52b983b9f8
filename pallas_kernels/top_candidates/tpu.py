"""Top candidates for TPUs: Pallas on Mosaic.

One core does the steps of a grid in order: a row's list stays on the chip from
the first tile of the vocabulary to the last, and there is no merge.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import dispatch
from pallas_kernels.top_candidates import best_list

Array = jax.Array
LANES = 128
ROWS = 128
TILE_BYTES = 2 << 20  # of the head, twice on the chip


def refuses(hidden_BWD, head_VD, *, count) -> str | None:
  """Why this backend cannot do a call of `api.top_candidates`, or None."""
  allowed = jnp.bfloat16, jnp.float32
  if why := dispatch.dtypes_refused(
    allowed, ('hidden', hidden_BWD), ('the head', head_VD)
  ):
    return why
  if count > LANES:
    return f'{count} candidates are more than {LANES}'
  if head_VD.shape[0] >= best_list.MOST_COLUMNS:
    return f'a vocabulary of {head_VD.shape[0]} is too large'
  if head_VD.shape[1] * head_VD.dtype.itemsize * LANES > TILE_BYTES:
    return f'a width of {head_VD.shape[1]} does not fit the chip'
  return None


def tokens_for(width: int, itemsize: int) -> int:
  """Rows of the head in a tile, whole lanes of them."""
  return max(TILE_BYTES // (width * itemsize) // LANES, 1) * LANES


def top_candidates_tpu(
  hidden_BWD: Array,
  head_VD: Array,
  *,
  count: int,
  tokens: int | None = None,
  interpret: bool | pltpu.InterpretParams = False,
) -> tuple[Array, Array]:
  """See `api.top_candidates`; `tokens` is the tile of the vocabulary."""
  b, w, d = hidden_BWD.shape
  rows, vocab = b * w, head_VD.shape[0]
  block = min(rows, ROWS)
  if tokens is None:
    tokens = tokens_for(d, head_VD.dtype.itemsize)
  steps = pl.cdiv(vocab, tokens)
  kept = pl.BlockSpec((block, LANES), lambda i, step: (i, 0))
  values, columns, total = pl.pallas_call(
    functools.partial(_kernel, count=count, vocab=vocab, steps=steps),
    grid=(pl.cdiv(rows, block), steps),
    in_specs=[
      pl.BlockSpec((block, d), lambda i, step: (i, 0)),
      pl.BlockSpec((tokens, d), lambda i, step: (step, 0)),
    ],
    out_specs=[kept, kept, kept],
    out_shape=[jax.ShapeDtypeStruct((rows, LANES), jnp.float32)] * 3,
    scratch_shapes=[
      pltpu.VMEM((block, tokens), jnp.float32),
      pltpu.VMEM((block, LANES), jnp.float32),
      pltpu.VMEM((block, LANES), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'arbitrary')
    ),
    interpret=interpret,
    name='top_candidates',
  )(hidden_BWD.reshape(rows, d), head_VD)
  logit, token = best_list.in_order(
    values[:, :count], columns[:, :count], count
  )
  shape = (b, w, count)
  return token.reshape(shape), (logit - total[:, :1]).reshape(shape)


def _kernel(
  hidden_ref,  # [rows, D]
  head_ref,  # [tokens, D]
  values_ref,  # float32[rows, 128], kept from step to step as all below
  columns_ref,  # float32[rows, 128]
  total_ref,  # float32[rows, 128], all columns alike
  x_ref,  # float32[rows, tokens]
  top_ref,  # float32[rows, 128], all columns alike
  mass_ref,  # float32[rows, 128], all columns alike
  *,
  count: int,
  vocab: int,
  steps: int,
):
  step = pl.program_id(1)
  rows, tokens = x_ref.shape

  @pl.when(step == 0)
  def _():
    values, columns = best_list.empty(rows, LANES, count)
    values_ref[...] = values
    columns_ref[...] = columns
    top_ref[...] = jnp.full_like(top_ref, -jnp.finfo(jnp.float32).max)
    mass_ref[...] = jnp.zeros_like(mass_ref)

  exact = lax.Precision.HIGHEST if head_ref.dtype == jnp.float32 else None
  x = lax.dot_general(
    hidden_ref[...],
    head_ref[...],
    (((1,), (1,)), ((), ())),
    precision=exact,
    preferred_element_type=jnp.float32,
  )
  first = step * tokens
  token = first + lax.broadcasted_iota(jnp.int32, x.shape, 1)
  x = jnp.where(token < vocab, x, -jnp.inf)
  x_ref[...] = x

  top = top_ref[:, :1]
  higher = jnp.maximum(top, jnp.max(x, axis=1, keepdims=True))
  mass = mass_ref[:, :1] * jnp.exp(top - higher)
  mass += jnp.sum(jnp.exp(x - higher), axis=1, keepdims=True)
  top_ref[...] = jnp.broadcast_to(higher, top_ref.shape)
  mass_ref[...] = jnp.broadcast_to(mass, mass_ref.shape)

  def take(i, carry):
    x, values, columns = best_list.take(
      x_ref[...],
      first.astype(jnp.float32),
      values_ref[...],
      columns_ref[...],
    )
    x_ref[...] = x
    values_ref[...] = values
    columns_ref[...] = columns
    return carry

  new = best_list.arrivals(x, values_ref[...], count)
  lax.fori_loop(0, new, take, 0)

  @pl.when(step == steps - 1)
  def _():
    total_ref[...] = top_ref[...] + jnp.log(mass_ref[...])
