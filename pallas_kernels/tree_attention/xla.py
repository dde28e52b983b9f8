"""The reference: two segments, one softmax, plain jnp."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.products import product

Array = jax.Array


def tree_attention_xla(
  q_BTQH: Array,
  cache_k_BKSH: Array,
  cache_v_BKSH: Array,
  length_B: Array,
  k_BKNH: Array,
  v_BKNH: Array,
  mask_BTN: Array,
  *,
  scale: float,
) -> Array:
  """See `api.tree_attention`."""
  b, t, q, h = q_BTQH.shape
  k = cache_k_BKSH.shape[1]
  q_BKGTH = q_BTQH.reshape(b, t, k, q // k, h).transpose(0, 2, 3, 1, 4)
  slot_S = jnp.arange(cache_k_BKSH.shape[2])
  live_BS = slot_S < length_B[:, None]
  # Values of dead slots are zeroed and not only masked: 0 * NaN is NaN.
  cache_v_BKSH = jnp.where(live_BS[:, None, :, None], cache_v_BKSH, 0)

  old_BKGTS = product('bkgth,bksh->bkgts', q_BKGTH, cache_k_BKSH) * scale
  old_BKGTS = jnp.where(live_BS[:, None, None, None, :], old_BKGTS, -jnp.inf)
  new_BKGTN = product('bkgth,bknh->bkgtn', q_BKGTH, k_BKNH) * scale
  new_BKGTN = jnp.where(mask_BTN[:, None, None], new_BKGTN, -jnp.inf)

  top_BKGT1 = jnp.maximum(
    jnp.max(old_BKGTS, axis=-1, keepdims=True),
    jnp.max(new_BKGTN, axis=-1, keepdims=True),
  )
  old_BKGTS = jnp.exp(old_BKGTS - top_BKGT1)
  new_BKGTN = jnp.exp(new_BKGTN - top_BKGT1)
  total_BKGT1 = jnp.sum(old_BKGTS, axis=-1, keepdims=True)
  total_BKGT1 += jnp.sum(new_BKGTN, axis=-1, keepdims=True)

  dtype = q_BTQH.dtype
  out_BKGTH = product(
    'bkgts,bksh->bkgth', old_BKGTS.astype(dtype), cache_v_BKSH
  )
  out_BKGTH += product('bkgtn,bknh->bkgth', new_BKGTN.astype(dtype), v_BKNH)
  out_BKGTH = (out_BKGTH / total_BKGT1).astype(dtype)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, q, h)
