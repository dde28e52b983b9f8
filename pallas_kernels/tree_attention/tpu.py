"""Tree attention for TPUs: Pallas on Mosaic."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import rows as rows_lib
from pallas_kernels.tree_attention import tiles as tiles_lib
from pallas_kernels.tree_attention.tiles import Tiles

Array = jax.Array
LANES = 128
MOST_NEW = 1024  # new rows stand in VMEM, all at once


def refuses(
  q_BTQH, cache_k_BKSH, cache_v_BKSH, length_B, k_BKNH, *others, scale
):
  """Why this backend cannot do a call of `api.tree_attention`, or None."""
  del cache_v_BKSH, length_B, others, scale
  allowed = jnp.bfloat16, jnp.float32
  if why := dispatch.dtypes_refused(
    allowed, ('q', q_BTQH), ('the cache', cache_k_BKSH)
  ):
    return why
  if q_BTQH.shape[-1] > 256:
    return f'head width {q_BTQH.shape[-1]} is above 256'
  if k_BKNH.shape[2] > MOST_NEW:
    return f'{k_BKNH.shape[2]} new rows are more than {MOST_NEW}'
  if tiles_lib.tpu(1, cache_k_BKSH.shape[2]).slots > 2048:
    return f'a capacity of {cache_k_BKSH.shape[2]} slots is no multiple of 128'
  return None


def tree_attention_tpu(
  q_BTQH: Array,
  cache_k_BKSH: Array,
  cache_v_BKSH: Array,
  length_B: Array,
  k_BKNH: Array,
  v_BKNH: Array,
  mask_BTN: Array,
  *,
  scale: float,
  tiles: Tiles | None = None,
  interpret: bool | pltpu.InterpretParams = False,
) -> Array:
  """See `api.tree_attention`.

  One core does the steps of a grid in order, so the softmax of a row stays on
  the chip from one tile of the cache to the next, and there is no merge.
  """
  b, t, q, h = q_BTQH.shape
  k, s, n = cache_k_BKSH.shape[1], cache_k_BKSH.shape[2], k_BKNH.shape[2]
  one = lambda x: x.reshape(b * k, *x.shape[2:])  # an axis of KV heads
  q_JRH = one(rows_lib.by_head(q_BTQH, k))
  r = q_JRH.shape[1]
  tiles = tiles_lib.tpu(r, s) if tiles is None else tiles
  words = pl.cdiv(n, 32)
  # Products with fewer than 8 keys do not compile, and bits come in words.
  pad = ((0, 0), (0, 0), (0, 32 * words - n), (0, 0))
  k_JNH, v_JNH = one(jnp.pad(k_BKNH, pad)), one(jnp.pad(v_BKNH, pad))
  bits_BRW = jnp.repeat(rows_lib.bits(mask_BTN, words), q // k, axis=1)
  steps = pl.cdiv(s, tiles.slots)

  def cached(j, i, step, length_ref):
    """Past the live tiles the index stands still, and nothing is copied."""
    del i
    live = pl.cdiv(length_ref[j // k], tiles.slots)
    return j, jnp.clip(step, 0, jnp.maximum(live - 1, 0)), 0

  row = lambda j, i, step, length_ref: (j, i, 0)
  new = lambda j, i, step, length_ref: (j, 0, 0)
  out_JRH = pl.pallas_call(
    functools.partial(
      _kernel, tiles=tiles, kv_heads=k, steps=steps, scale=scale
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(b * k, pl.cdiv(r, tiles.rows), steps),
      in_specs=[
        pl.BlockSpec((None, tiles.rows, h), row),
        pl.BlockSpec((None, tiles.slots, h), cached),
        pl.BlockSpec((None, tiles.slots, h), cached),
        pl.BlockSpec((None, 32 * words, h), new),
        pl.BlockSpec((None, 32 * words, h), new),
        pl.BlockSpec(
          (None, tiles.rows, words),
          lambda j, i, step, length_ref: (j // k, i, 0),
        ),
      ],
      out_specs=pl.BlockSpec((None, tiles.rows, h), row),
      scratch_shapes=[
        pltpu.VMEM((tiles.rows, h), jnp.float32),
        pltpu.VMEM((tiles.rows, LANES), jnp.float32),
        pltpu.VMEM((tiles.rows, LANES), jnp.float32),
      ],
    ),
    out_shape=jax.ShapeDtypeStruct(q_JRH.shape, q_BTQH.dtype),
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'arbitrary')
    ),
    interpret=interpret,
    name='tree_attention',
  )(
    length_B,
    q_JRH,
    one(cache_k_BKSH),
    one(cache_v_BKSH),
    k_JNH,
    v_JNH,
    bits_BRW,
  )
  return rows_lib.by_position(out_JRH.reshape(b, k, r, h), t)


def _kernel(
  length_ref,  # int32[B], on the scalar core
  q_ref,  # [rows, H]
  k_ref,  # [slots, H]
  v_ref,  # [slots, H]
  new_k_ref,  # [32 W, H]
  new_v_ref,  # [32 W, H]
  bits_ref,  # int32[rows, W]
  out_ref,  # [rows, H]
  o_ref,  # float32[rows, H], kept from step to step
  m_ref,  # float32[rows, 128], all columns alike
  l_ref,  # float32[rows, 128], all columns alike
  *,
  tiles: Tiles,
  kv_heads: int,
  steps: int,
  scale: float,
):
  step = pl.program_id(2)
  length = length_ref[pl.program_id(0) // kv_heads]
  first = step * tiles.slots
  attend = functools.partial(
    _attend, q_ref, o_ref, m_ref, l_ref, scale * math.log2(math.e)
  )

  @pl.when(step == 0)
  def _():
    o_ref[...] = jnp.zeros_like(o_ref)
    m_ref[...] = jnp.full_like(m_ref, rows_lib.UNSEEN)
    l_ref[...] = jnp.zeros_like(l_ref)

  @pl.when(first < length)
  def _():
    slot = lax.broadcasted_iota(jnp.int32, (tiles.rows, tiles.slots), 1)
    row = lax.broadcasted_iota(jnp.int32, v_ref.shape, 0)
    # Not only the weight has to be 0: 0 * NaN is NaN.
    v = jnp.where(first + row < length, v_ref[...], 0)
    attend(k_ref[...], v, first + slot < length)

  @pl.when(step == steps - 1)
  def _():
    attend(new_k_ref[...], new_v_ref[...], _seen(bits_ref))
    out_ref[...] = (o_ref[...] / l_ref[:, :1]).astype(out_ref.dtype)


def _seen(bits_ref):
  """bool[rows, 32 W], bit by bit."""
  rows, words = bits_ref.shape
  column = lax.broadcasted_iota(jnp.int32, (rows, 32 * words), 1)
  word = jnp.broadcast_to(bits_ref[:, :1], column.shape)
  for w in range(1, words):
    word = jnp.where(column // 32 == w, bits_ref[:, w : w + 1], word)
  return (lax.shift_right_logical(word, column % 32) & 1) != 0


def _attend(q_ref, o_ref, m_ref, l_ref, scale, k, v, seen):
  """One tile of an online softmax; `scale` is in units of log 2."""
  exact = lax.Precision.HIGHEST if v.dtype == jnp.float32 else None
  dot = functools.partial(
    lax.dot_general, precision=exact, preferred_element_type=jnp.float32
  )
  logits = dot(q_ref[...], k, (((1,), (1,)), ((), ()))) * scale
  logits = jnp.where(seen, logits, rows_lib.UNSEEN)
  before = m_ref[:, :1]
  top = jnp.maximum(before, jnp.max(logits, axis=1, keepdims=True))
  p = jnp.where(seen, jnp.exp2(logits - top), 0)
  fade = jnp.exp2(before - top)
  mass = fade * l_ref[:, :1] + jnp.sum(p, axis=1, keepdims=True)
  o = dot(p.astype(v.dtype), v, (((1,), (0,)), ((), ())))
  o_ref[...] = fade * o_ref[...] + o
  m_ref[...] = jnp.broadcast_to(top, m_ref.shape)
  l_ref[...] = jnp.broadcast_to(mass, l_ref.shape)
