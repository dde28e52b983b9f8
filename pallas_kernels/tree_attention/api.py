"""Attention of a few new rows over a KV cache and over one another."""

from __future__ import annotations

from collections.abc import Sequence

import chex
import jax

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import mosaic_gpu, tpu, triton
from pallas_kernels.tree_attention.xla import tree_attention_xla

Array = jax.Array
BACKENDS = (
  dispatch.mosaic_gpu(mosaic_gpu.tree_attention_mosaic_gpu, mosaic_gpu.refuses),
  dispatch.triton(triton.tree_attention_triton, triton.refuses),
  dispatch.tpu(tpu.tree_attention_tpu, tpu.refuses),
  dispatch.Backend(name='xla', run=tree_attention_xla),
)


def tree_attention(
  q_BTQH: Array,
  cache_k_BKSH: Array,
  cache_v_BKSH: Array,
  length_B: Array,
  k_BKNH: Array,
  v_BKNH: Array,
  mask_BTN: Array,
  *,
  scale: float,
  backend: str | Sequence[str] | None = None,
) -> Array:
  """softmax(scale * q k^T) v over [cache[:length] ; new rows where mask].

  One op serves a single token, a prompt chunk, a draft block and a draft tree:
  what the new rows see of one another is the mask (causal, full, ancestors).
  The cache is only read; slots from `length` on may hold anything, NaN too.
  Gradients: of backend 'xla' only; kernels serve inference.

  Args:
    q_BTQH: queries, already rotated.
    cache_k_BKSH, cache_v_BKSH: head-major cache; Q is a multiple of K.
    length_B: int32, committed slots per row; may be 0.
    k_BKNH, v_BKNH: the new rows' keys and values, N >= T.
    mask_BTN: bool, which new rows a query sees. Each query must see at least
      one key, in the cache or here.
    scale: factor on the logits, usually 1 / sqrt(H).
    backend: 'mosaic_gpu' (Hopper), 'triton' (Ampere and later), 'tpu', 'xla';
      None, a name or names in order, see `dispatch.call`.

  Returns:
    [B, T, Q, H] in the dtype of q; logits and softmax are float32.

  Raises:
    ValueError: unknown backend.
    NotImplementedError: a backend that was asked for cannot do this call.
    AssertionError: shapes do not fit.
  """
  b, t, q, h = q_BTQH.shape
  k, s, n = cache_k_BKSH.shape[1], cache_k_BKSH.shape[2], k_BKNH.shape[2]
  chex.assert_shape((cache_k_BKSH, cache_v_BKSH), (b, k, s, h))
  chex.assert_shape((k_BKNH, v_BKNH), (b, k, n, h))
  chex.assert_shape(mask_BTN, (b, t, n))
  chex.assert_shape(length_B, (b,))
  chex.assert_is_divisible(q, k)
  return dispatch.call(
    'tree_attention',
    BACKENDS,
    backend,
    q_BTQH,
    cache_k_BKSH,
    cache_v_BKSH,
    length_B,
    k_BKNH,
    v_BKNH,
    mask_BTN,
    scale=scale,
  )
