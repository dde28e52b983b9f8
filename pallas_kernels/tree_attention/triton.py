"""Tree attention for Ampere, Ada and Hopper: Pallas on Triton.

Pallas announced the end of its Triton backend (jax 0.11); this file can go
without touching anything but its entry in `api.py`.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import rows as rows_lib
from pallas_kernels.tree_attention import tiles as tiles_lib
from pallas_kernels.tree_attention.tiles import Tiles

Array = jax.Array
MOST_VALUES = 2**31  # of an array: Pallas counts offsets in 32 bits


def refuses(q_BTQH, cache_k_BKSH, *others, scale) -> str | None:
  """Why this backend cannot do a call of `api.tree_attention`, or None."""
  del others, scale
  allowed = jnp.bfloat16, jnp.float16, jnp.float32
  if why := dispatch.dtypes_refused(
    allowed, ('q', q_BTQH), ('the cache', cache_k_BKSH)
  ):
    return why
  if cache_k_BKSH.size >= MOST_VALUES:
    return f'a cache of {cache_k_BKSH.shape} has 2^31 values or more'
  if q_BTQH.shape[-1] > 128:
    return f'head width {q_BTQH.shape[-1]} is above 128'
  return None


def tree_attention_triton(
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
  interpret: bool = False,
) -> Array:
  """See `api.tree_attention`. The last split also reads the new rows."""
  b, t, q, h = q_BTQH.shape
  k, s, n = cache_k_BKSH.shape[1], cache_k_BKSH.shape[2], k_BKNH.shape[2]
  heads = b * k
  one = lambda x: x.reshape(heads, *x.shape[2:])  # an axis of KV heads
  q_JRH = one(rows_lib.by_head(q_BTQH, k))
  r = q_JRH.shape[1]
  if tiles is None:
    tiles = tiles_lib.triton(heads, r, s, q_BTQH.dtype.itemsize)
  # Triton's values have powers of two; what is beyond H is never read.
  wide = pl.next_power_of_2(h)
  y = tiles.splits
  whole = lambda slots: pl.BlockSpec(
    (None, slots, wide), lambda j, i, y: (j, 0, 0)
  )
  o_JYRH, m_JYR, l_JYR = pl.pallas_call(
    functools.partial(
      _kernel, tiles=tiles, shape=(r, n, h), group=q // k, scale=scale
    ),
    grid=(heads, pl.cdiv(r, tiles.rows), y),
    in_specs=[
      pl.BlockSpec((None,), lambda j, i, y: (j // k,)),
      pl.BlockSpec((None, tiles.rows, wide), lambda j, i, y: (j, i, 0)),
      whole(s),
      whole(s),
      whole(n),
      whole(n),
      pl.BlockSpec((None, t, n), lambda j, i, y: (j // k, 0, 0)),
    ],
    out_specs=[
      pl.BlockSpec(
        (None, None, tiles.rows, wide), lambda j, i, y: (j, y, i, 0)
      ),
      pl.BlockSpec((None, None, tiles.rows), lambda j, i, y: (j, y, i)),
      pl.BlockSpec((None, None, tiles.rows), lambda j, i, y: (j, y, i)),
    ],
    out_shape=[
      jax.ShapeDtypeStruct((heads, y, r, h), jnp.float32),
      jax.ShapeDtypeStruct((heads, y, r), jnp.float32),
      jax.ShapeDtypeStruct((heads, y, r), jnp.float32),
    ],
    compiler_params=pltriton.CompilerParams(
      num_warps=tiles.warps, num_stages=tiles.stages
    ),
    interpret=interpret,
    name='tree_attention',
  )(
    length_B,
    q_JRH,
    one(cache_k_BKSH),
    one(cache_v_BKSH),
    one(k_BKNH),
    one(v_BKNH),
    mask_BTN,
  )
  out_JRH = rows_lib.merge(o_JYRH, m_JYR, l_JYR).astype(q_BTQH.dtype)
  return rows_lib.by_position(out_JRH.reshape(b, k, r, h), t)


def _kernel(
  length_ref,  # int32[]
  q_ref,  # [rows, wide]
  k_ref,  # [S, wide]
  v_ref,  # [S, wide]
  new_k_ref,  # [N, wide]
  new_v_ref,  # [N, wide]
  mask_ref,  # bool[T, N]
  o_ref,  # float32[rows, wide]
  m_ref,  # float32[rows]
  l_ref,  # float32[rows]
  *,
  tiles: Tiles,
  shape: tuple[int, int, int],
  group: int,
  scale: float,
):
  r, n, h = shape
  block, split = pl.program_id(1), pl.program_id(2)
  inside = block * tiles.rows + jnp.arange(tiles.rows) < r
  position = (block * tiles.rows + jnp.arange(tiles.rows)) // group
  real_H = jnp.arange(q_ref.shape[1]) < h
  real = inside[:, None] & real_H[None, :]
  q = pltriton.load(q_ref, mask=real, other=0)
  step = functools.partial(_step, q, scale * math.log2(math.e))

  def load(ref, first, end):
    """Rows that are not there are zero: a masked logit does not stop a NaN."""
    there = first + jnp.arange(tiles.slots) < end
    return pltriton.load(
      ref.at[pl.ds(first, tiles.slots), :],
      mask=there[:, None] & real_H[None, :],
      other=0,
    )

  def old(tile, carry):
    first = tile * tiles.slots
    live = first + jnp.arange(tiles.slots) < length
    seen = jnp.broadcast_to(live[None, :], (tiles.rows, tiles.slots))
    return step(
      carry, load(k_ref, first, length), load(v_ref, first, length), seen
    )

  def new(tile, carry):
    first = tile * tiles.slots
    column = first + jnp.arange(tiles.slots)
    seen = pltriton.load(
      mask_ref.at[position[:, None], column[None, :]],
      mask=inside[:, None] & (column < n)[None, :],
      other=False,
    )
    return step(
      carry, load(new_k_ref, first, n), load(new_v_ref, first, n), seen
    )

  length = length_ref[()]
  total = pl.cdiv(length, tiles.slots)
  share = pl.cdiv(total, tiles.splits)
  carry = (
    jnp.zeros(q.shape, jnp.float32),
    jnp.full((tiles.rows,), rows_lib.UNSEEN, jnp.float32),
    jnp.zeros((tiles.rows,), jnp.float32),
  )
  end = jnp.minimum((split + 1) * share, total)
  carry = lax.fori_loop(split * share, end, old, carry)
  # The last split has the smallest share of the cache.
  last = (split == tiles.splits - 1).astype(jnp.int32)
  carry = lax.fori_loop(0, last * pl.cdiv(n, tiles.slots), new, carry)
  o, m, mass = carry
  pltriton.store(o_ref, o, mask=real)
  pltriton.store(m_ref, m, mask=inside)
  pltriton.store(l_ref, mass, mask=inside)


def _step(q, scale, carry, k, v, seen):
  """One tile of an online softmax; `scale` is in units of log 2."""
  o, m, mass = carry
  exact = lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
  logits = pltriton.dot(q, k, trans_b=True, precision=exact) * scale
  logits = jnp.where(seen, logits, rows_lib.UNSEEN)
  top = jnp.maximum(m, jnp.max(logits, axis=1))
  p = jnp.where(seen, jnp.exp2(logits - top[:, None]), 0)
  fade = jnp.exp2(m - top)
  o = o * fade[:, None] + pltriton.dot(p.astype(v.dtype), v, precision=exact)
  return o, top, mass * fade + jnp.sum(p, axis=1)
