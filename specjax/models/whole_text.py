"""Causal attention over whole texts, as training reads them."""

from __future__ import annotations

from collections.abc import Iterator

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
  for at, see_BTN in lots(t, text_BT):
    keys, values = k_BKTH[:, :, : at.stop], v_BKTH[:, :, : at.stop]
    logits = product('bkgth,bknh->bkgtn', q_BKGTH[:, :, :, at], keys)
    logits = jnp.where(see_BTN[:, None, None], logits * scale, -jnp.inf)
    share = jax.nn.softmax(logits).astype(q_BTQH.dtype)
    parts.append(product('bkgtn,bknh->bkgth', share, values))
  out_BKGTH = jnp.concatenate(parts, axis=3).astype(q_BTQH.dtype)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, q, h)


def lots(t: int, text_BT: Array | None) -> Iterator[tuple[slice, Array]]:
  """Queries some at a time, and what each sees of the keys up to their end.

  Masks are bool[B or 1, T, N], N being the stop of the slice: the tokens up to
  the query's own, of its text.
  """
  for start in range(0, t, LOT):
    end = min(start + LOT, t)
    see_BTN = (jnp.arange(start, end)[:, None] >= jnp.arange(end))[None]
    if text_BT is not None:
      see_BTN = see_BTN & (
        text_BT[:, start:end, None] == text_BT[:, None, :end]
      )
    yield slice(start, end), see_BTN
