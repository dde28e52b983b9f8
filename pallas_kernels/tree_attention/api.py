"""Attention of a few new rows over a KV cache and over one another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp

from pallas_kernels import dispatch
from pallas_kernels.tree_attention import mosaic_gpu, tpu, triton
from pallas_kernels.tree_attention.cpu import tree_attention_cpu
from pallas_kernels.tree_attention.xla import tree_attention_xla

Array = jax.Array


def _of_one_layer(backend: dispatch.Backend) -> dispatch.Backend:
  """A backend that is handed its layer's cache, cut out of all layers'."""

  def cut(do: Callable, take: Callable) -> Callable:
    def call(q, cache_k, cache_v, length, k, v, mask, layer, **options):
      caches = take(cache_k, layer), take(cache_v, layer)
      return do(q, *caches, length, k, v, mask, **options)

    return call

  return dataclasses.replace(
    backend,
    run=cut(backend.run, lambda x, layer: x[layer]),
    refuses=cut(
      backend.refuses,
      lambda x, layer: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
    ),
  )


BACKENDS = (
  *map(
    _of_one_layer,
    (
      dispatch.mosaic_gpu(
        mosaic_gpu.tree_attention_mosaic_gpu, mosaic_gpu.refuses
      ),
      dispatch.triton(triton.tree_attention_triton, triton.refuses),
      dispatch.tpu(tpu.tree_attention_tpu, tpu.refuses),
    ),
  ),
  dispatch.Backend(name='cpu', run=tree_attention_cpu, platform='cpu'),
  _of_one_layer(dispatch.Backend(name='xla', run=tree_attention_xla)),
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
  layer: int | Array | None = None,
  backend: str | Sequence[str] | None = None,
) -> Array:
  """softmax(scale * q k^T) v over [cache[:length] ; new rows where mask].

  One op serves a single token, a prompt chunk, a draft block and a draft tree:
  what the new rows see of one another is the mask (causal, full, ancestors).
  The cache is only read; slots from `length` on may hold anything, NaN too.
  Gradients: of backend 'xla' only; kernels serve inference.

  Args:
    q_BTQH: queries, already rotated.
    cache_k_BKSH, cache_v_BKSH: head-major cache; Q is a multiple of K. With
      `layer` that of all layers, [L, B, K, S, H].
    length_B: int32, committed slots per row; may be 0.
    k_BKNH, v_BKNH: the new rows' keys and values, N >= T.
    mask_BTN: bool, which new rows a query sees. Each query must see at least
      one key, in the cache or here.
    scale: factor on the logits, usually 1 / sqrt(H).
    layer: which layer of the cache is read.
    backend: 'mosaic_gpu' (Hopper), 'triton' (Ampere and later), 'tpu', 'cpu',
      'xla'; None, a name or names in order, see `dispatch.call`.

  Returns:
    [B, T, Q, H] in the dtype of q; logits and softmax are float32.

  Raises:
    ValueError: unknown backend.
    NotImplementedError: a backend that was asked for cannot do this call.
    AssertionError: shapes do not fit.
  """
  b, t, q, h = q_BTQH.shape
  caches = cache_k_BKSH, cache_v_BKSH
  if layer is None:
    layer, caches = 0, [x[None] for x in caches]
  k, s, n = *caches[0].shape[2:4], k_BKNH.shape[2]
  chex.assert_shape(caches, (len(caches[0]), b, k, s, h))
  chex.assert_shape((k_BKNH, v_BKNH), (b, k, n, h))
  chex.assert_shape(mask_BTN, (b, t, n))
  chex.assert_shape(length_B, (b,))
  chex.assert_is_divisible(q, k)
  return dispatch.call(
    'tree_attention',
    BACKENDS,
    backend,
    q_BTQH,
    *caches,
    length_B,
    k_BKNH,
    v_BKNH,
    mask_BTN,
    jnp.asarray(layer, jnp.int32),
    scale=scale,
  )
