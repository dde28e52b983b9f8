"""Tree attention for Hopper: Pallas on Mosaic GPU.

One warpgroup keeps 64 rows; tensor memory copies bring tiles of keys and values
a few steps ahead of the products. Ampere lacks these instructions, Blackwell
has others.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import rows as rows_lib
from pallas_kernels.tree_attention import tiles as tiles_lib
from pallas_kernels.tree_attention.hopper import HOPPER, Machine, swizzled
from pallas_kernels.tree_attention.tiles import Tiles

Array = jax.Array
TILE = 64  # rows and slots


def refuses(q_BTQH, cache_k_BKSH, *others, scale) -> str | None:
  """Why this backend cannot do a call of `api.tree_attention`, or None."""
  del others, scale
  h, s = q_BTQH.shape[-1], cache_k_BKSH.shape[2]
  allowed = jnp.bfloat16, jnp.float16
  if why := dispatch.dtypes_refused(
    allowed, ('q', q_BTQH), ('the cache', cache_k_BKSH)
  ):
    return why
  if h % 16 or h > 128:
    return f'head width {h} is no multiple of 16 up to 128'
  if s % TILE:
    return f'a capacity of {s} slots is no multiple of {TILE}'
  return None


def tree_attention_mosaic_gpu(
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
  machine: Machine = HOPPER,
) -> Array:
  """See `api.tree_attention`. The last split also reads the new rows."""
  b, t, q, h = q_BTQH.shape
  k, s, n = cache_k_BKSH.shape[1], cache_k_BKSH.shape[2], k_BKNH.shape[2]
  one = lambda x: x.reshape(b * k, *x.shape[2:])  # an axis of KV heads
  q_JRH = one(rows_lib.by_head(q_BTQH, k))
  r = q_JRH.shape[1]
  if tiles is None:
    tiles = tiles_lib.mosaic_gpu(b * k, r, s)
  blocks = pl.cdiv(r, TILE)
  more_rows, more_new = blocks * TILE - r, -n % TILE
  q_JRH = jnp.pad(q_JRH, ((0, 0), (0, more_rows), (0, 0)))
  pad = ((0, 0), (0, 0), (0, more_new), (0, 0))
  k_JNH, v_JNH = one(jnp.pad(k_BKNH, pad)), one(jnp.pad(v_BKNH, pad))
  bits_BTW = rows_lib.bits(mask_BTN, k_JNH.shape[1] // 32)
  bits_BWR = jnp.repeat(bits_BTW, q // k, axis=1).swapaxes(1, 2)
  bits_BWR = jnp.pad(bits_BWR, ((0, 0), (0, 0), (0, more_rows)))

  shape = (b * k, tiles.splits, blocks * TILE)
  tile = functools.partial(
    plgpu.SMEM, dtype=q_BTQH.dtype, transforms=swizzled(h)
  )

  def tree_attention(*refs):  # the kernel's name
    _kernel(*refs, machine=machine, tiles=tiles, kv_heads=k, scale=scale)

  o_JYRH, m_JYR, l_JYR = plgpu.kernel(
    tree_attention,
    out_type=[
      jax.ShapeDtypeStruct((*shape, h), jnp.float32),
      jax.ShapeDtypeStruct(shape, jnp.float32),
      jax.ShapeDtypeStruct(shape, jnp.float32),
    ],
    scratch_types=[
      tile((TILE, h)),
      tile((tiles.stages, TILE, h)),
      tile((tiles.stages, TILE, h)),
      plgpu.Barrier(),
      plgpu.Barrier(num_barriers=tiles.stages),
      plgpu.Barrier(num_barriers=tiles.stages),
    ],
    grid=(b * k, blocks, tiles.splits),
    grid_names=('head', 'block', 'split'),
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Lane
    ),
    interpret=machine.interpret,
  )(
    length_B,
    q_JRH,
    one(cache_k_BKSH),
    one(cache_v_BKSH),
    k_JNH,
    v_JNH,
    bits_BWR,
  )
  out_JRH = rows_lib.merge(o_JYRH, m_JYR, l_JYR)[:, :r].astype(q_BTQH.dtype)
  return rows_lib.by_position(out_JRH.reshape(b, k, r, h), t)


def _kernel(
  length_ref,  # int32[B]
  q_ref,  # [J, R, H]
  k_ref,  # [J, S, H]
  v_ref,  # [J, S, H]
  new_k_ref,  # [J, N, H]
  new_v_ref,  # [J, N, H]
  bits_ref,  # int32[B, W, R]
  o_ref,  # float32[J, Y, R, H]
  m_ref,  # float32[J, Y, R]
  l_ref,  # float32[J, Y, R]
  q_tile,  # [64, H], on chip as all below
  k_tiles,  # [stages, 64, H]
  v_tiles,  # [stages, 64, H]
  q_here,  # barriers
  k_here,
  v_here,
  *,
  machine: Machine,
  tiles: Tiles,
  kv_heads: int,
  scale: float,
):
  head, split = lax.axis_index('head'), lax.axis_index('split')
  rows = pl.ds(lax.axis_index('block') * TILE, TILE)
  batch = head // kv_heads
  length = length_ref[batch]
  total = pl.cdiv(length, TILE)
  share = pl.cdiv(total, tiles.splits)
  first = jnp.minimum(split * share, total)
  old = jnp.minimum(first + share, total) - first
  # The last split has the smallest share of the cache.
  last = (split == tiles.splits - 1).astype(jnp.int32)
  count = old + last * (new_k_ref.shape[1] // TILE)

  def fetch(i):
    """Starts to copy tile i: those of the cache, then new rows."""
    slot = lax.rem(i, tiles.stages)

    def copy(keys, values, at):
      place = (head, pl.ds(at * TILE, TILE))
      for source, tile, here in (
        (keys, k_tiles, k_here),
        (values, v_tiles, v_here),
      ):
        plgpu.copy_gmem_to_smem(source.at[place], tile.at[slot], here.at[slot])

    pl.when(i < old)(lambda: copy(k_ref, v_ref, first + i))
    pl.when((i >= old) & (i < count))(
      lambda: copy(new_k_ref, new_v_ref, i - old)
    )

  plgpu.copy_gmem_to_smem(q_ref.at[head, rows], q_tile, q_here)
  for i in range(tiles.stages):
    fetch(jnp.int32(i))
  plgpu.barrier_wait(q_here)

  def step(i, carry, seen_of, clear):
    o, m, mass = carry
    slot = lax.rem(i, tiles.stages)
    plgpu.barrier_wait(k_here.at[slot])
    logits = machine.dot_t(q_tile, k_tiles.at[slot]) * (
      scale * math.log2(math.e)
    )
    seen = seen_of(i)
    logits = jnp.where(seen, logits, rows_lib.UNSEEN)
    top = jnp.maximum(m, jnp.max(logits, axis=1))
    across = lambda x, like: lax.broadcast_in_dim(x, like.shape, [0])
    p = jnp.where(seen, jnp.exp2(logits - across(top, logits)), 0.0)
    fade = jnp.exp2(m - top)
    mass = mass * fade + jnp.sum(p, axis=1)
    plgpu.barrier_wait(v_here.at[slot])
    clear(i, slot)
    o = o * across(fade, o) + machine.dot(
      p.astype(v_tiles.dtype), v_tiles.at[slot]
    )
    fetch(i + tiles.stages)
    return o, top, mass

  column = machine.iota((TILE, TILE), 1)

  def live(i):
    return column < length - (first + i) * TILE

  def clear_dead(i, slot):
    """Values of dead slots become 0 on the chip: 0 * NaN is NaN."""
    left = length - (first + i) * TILE

    @pl.when(left < TILE)
    def _():
      row = machine.iota(v_tiles.shape[1:], 0)
      v = v_tiles[slot]
      v_tiles[slot] = jnp.where(row < left, v, jnp.zeros_like(v))
      plgpu.commit_smem()

  def allowed(i):
    word = 2 * (i - old)
    low, high = (
      lax.broadcast_in_dim(
        machine.load_rows(bits_ref, (batch, word + w, rows)), (TILE, TILE), [0]
      )
      for w in range(2)
    )
    word = jnp.where(column < 32, low, high)
    return (lax.shift_right_logical(word, column & 31) & 1) != 0

  carry = (
    machine.full((TILE, q_ref.shape[2]), 0.0),
    machine.full((TILE,), rows_lib.UNSEEN),
    machine.full((TILE,), 0.0),
  )
  carry = lax.fori_loop(
    0, old, lambda i, c: step(i, c, live, clear_dead), carry
  )
  carry = lax.fori_loop(
    old, count, lambda i, c: step(i, c, allowed, lambda i, slot: None), carry
  )
  o, m, mass = carry
  o_ref[head, split, rows] = o
  m_ref[head, split, rows] = m
  l_ref[head, split, rows] = mass
