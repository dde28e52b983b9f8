"""For CPUs: the cache in tiles, as far as the longest sequence goes.

The reference reads every slot of the cache and copies a layer's to do so. Here
a tile is cut out of the whole cache, masked and used while it is in the core's
own memory, and slots behind the longest sequence are never touched.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.products import product

Array = jax.Array
TILE = 64
LOWEST = -1e30  # below any logit; -inf would make NaN of rows yet without keys


def tree_attention_cpu(
  q_BTQH: Array,
  cache_k_LBKSH: Array,
  cache_v_LBKSH: Array,
  length_B: Array,
  k_BKNH: Array,
  v_BKNH: Array,
  mask_BTN: Array,
  layer: Array,
  *,
  scale: float,
) -> Array:
  """See `api.tree_attention`; an online softmax over tiles of slots."""
  b, t, q, h = q_BTQH.shape
  k, s = cache_k_LBKSH.shape[2:4]
  dtype = q_BTQH.dtype
  q_BKGTH = q_BTQH.reshape(b, t, k, q // k, h).transpose(0, 2, 3, 1, 4)

  def weighted(top_BKGT1, logits_BKGTS, v_BKSH):
    share_BKGTS = jnp.exp(logits_BKGTS - top_BKGT1)
    out_BKGTH = product('bkgts,bksh->bkgth', share_BKGTS.astype(dtype), v_BKSH)
    return out_BKGTH, jnp.sum(share_BKGTS, axis=-1, keepdims=True)

  new_BKGTN = product('bkgth,bknh->bkgtn', q_BKGTH, k_BKNH) * scale
  new_BKGTN = jnp.where(mask_BTN[:, None, None], new_BKGTN, -jnp.inf)
  top_BKGT1 = jnp.maximum(jnp.max(new_BKGTN, axis=-1, keepdims=True), LOWEST)
  start = (top_BKGT1, *weighted(top_BKGT1, new_BKGTN, v_BKNH))
  # A cache of no whole tiles is one tile; the package's own have 128 or more.
  tile = s if s % TILE else TILE

  def step(i, carry):
    top_BKGT1, out_BKGTH, total_BKGT1 = carry
    cut = lambda x: lax.dynamic_slice(
      x, (layer, 0, 0, i * tile, 0), (1, b, k, tile, h)
    )[0]
    live_BS = i * tile + jnp.arange(tile) < length_B[:, None]
    # Values of dead slots are zeroed and not only masked: 0 * NaN is NaN.
    v_BKSH = jnp.where(live_BS[:, None, :, None], cut(cache_v_LBKSH), 0)
    old_BKGTS = product('bkgth,bksh->bkgts', q_BKGTH, cut(cache_k_LBKSH))
    old_BKGTS = jnp.where(
      live_BS[:, None, None, None], old_BKGTS * scale, -jnp.inf
    )
    new_top_BKGT1 = jnp.maximum(
      top_BKGT1, jnp.max(old_BKGTS, axis=-1, keepdims=True)
    )
    shrink_BKGT1 = jnp.exp(top_BKGT1 - new_top_BKGT1)
    more_BKGTH, sum_BKGT1 = weighted(new_top_BKGT1, old_BKGTS, v_BKSH)
    return (
      new_top_BKGT1,
      out_BKGTH * shrink_BKGT1 + more_BKGTH,
      total_BKGT1 * shrink_BKGT1 + sum_BKGT1,
    )

  tiles = (jnp.max(length_B) + tile - 1) // tile
  _, out_BKGTH, total_BKGT1 = lax.fori_loop(0, tiles, step, start)
  out_BKGTH = (out_BKGTH / total_BKGT1).astype(dtype)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, q, h)
