"""Causal attention over whole texts, as training reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.products import product
from specjax.types import Array

LOT = 128  # queries at a time


def attention(
  q_BTQH: Array,
  k_BKTH: Array,
  v_BKTH: Array,
  text_BT: Array | None,
  scale: float,
) -> Array:
  """softmax(scale * q k^T) v over the tokens up to each query's own.

  Queries go in lots, each with the keys up to its end: of the square of T only
  little more than the lower half is computed.

  Args:
    q_BTQH: rotated queries.
    k_BKTH: rotated keys; v_BKTH alike.
    text_BT: int32, where a row holds several texts: none sees another.
    scale: factor on the logits.

  Returns:
    [B, T, Q, H] in the dtype of q; logits and softmax are float32.
  """
  b, t, q, h = q_BTQH.shape
  k = k_BKTH.shape[1]
  q_BKGTH = q_BTQH.reshape(b, t, k, q // k, h).transpose(0, 2, 3, 1, 4)
  parts = []
  for start in range(0, t, LOT):
    end = min(start + LOT, t)
    see_TN = jnp.arange(start, end)[:, None] >= jnp.arange(end)
    if text_BT is not None:
      see_TN &= text_BT[:, start:end, None] == text_BT[:, None, :end]
      see_TN = see_TN[:, None, None]
    keys, values = k_BKTH[:, :, :end], v_BKTH[:, :, :end]
    logits = product('bkgth,bknh->bkgtn', q_BKGTH[:, :, :, start:end], keys)
    logits = jnp.where(see_TN, logits * scale, -jnp.inf)
    share = jax.nn.softmax(logits).astype(q_BTQH.dtype)
    parts.append(product('bkgtn,bknh->bkgth', share, values))
  out_BKGTH = jnp.concatenate(parts, axis=3).astype(q_BTQH.dtype)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, q, h)
