"""What the kernels share: rows of one KV head, bits of a mask, the merge.

A row is one query head of one new position: r = t * G + g, so that the G query
heads that share a KV head read its keys once. Letters as in `api.py`, and

  R  rows of a KV head, T x G       J  KV heads of all sequences, B x K
  Y  splits of a cache
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array
# Stands for -inf where nothing was seen: the difference of two is 0, not NaN.
UNSEEN = -1e30


def by_head(q_BTQH: Array, kv_heads: int) -> Array:
  """[B, K, R, H]: the rows of each KV head."""
  b, t, q, h = q_BTQH.shape
  q_BTKGH = q_BTQH.reshape(b, t, kv_heads, q // kv_heads, h)
  return q_BTKGH.swapaxes(1, 2).reshape(b, kv_heads, -1, h)


def by_position(out_BKRH: Array, t: int) -> Array:
  """[B, T, Q, H]: undoes `by_head`."""
  b, k, r, h = out_BKRH.shape
  out_BKTGH = out_BKRH.reshape(b, k, t, r // t, h)
  return out_BKTGH.swapaxes(1, 2).reshape(b, t, -1, h)


def bits(mask_BTN: Array, words: int) -> Array:
  """int32[B, T, words]: bit n % 32 of word n // 32 is new row n's."""
  b, t, n = mask_BTN.shape
  mask_BTN = jnp.pad(mask_BTN, ((0, 0), (0, 0), (0, 32 * words - n)))
  mask_BTWI = mask_BTN.reshape(b, t, words, 32).astype(jnp.uint32)
  bit_BTWI = mask_BTWI << jnp.arange(32, dtype=jnp.uint32)
  bits_BTW = jnp.sum(bit_BTWI, axis=-1, dtype=jnp.uint32)
  return jax.lax.bitcast_convert_type(bits_BTW, jnp.int32)


def merge(o_JYRH: Array, m_JYR: Array, l_JYR: Array) -> Array:
  """float32[J, R, H]: one softmax from the parts of its splits.

  Dao et al., "Flash-Decoding for long-context inference" (2023).

  Args:
    o_JYRH: float32, sum of exp2(logit - m) v; all values finite.
    m_JYR: float32, the largest logit in units of log 2, or UNSEEN.
    l_JYR: float32, sum of exp2(logit - m).
  """
  factor_JYR = jnp.exp2(m_JYR - jnp.max(m_JYR, axis=1, keepdims=True))
  total_JR = jnp.sum(factor_JYR * l_JYR, axis=1)
  out_JRH = jnp.sum(factor_JYR[..., None] * o_JYRH, axis=1)
  return out_JRH / total_JR[..., None]
