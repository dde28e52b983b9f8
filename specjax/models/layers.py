"""The parts of a transformer layer; used by targets and by drafters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.products import product
from specjax.models.rope import rotate
from specjax.types import Array, struct


@struct
class Mlp:
  """A gated mlp; matrices are [out, in], as in the checkpoints.

  That order is also the faster one on CPU for a few rows, and costs nothing
  elsewhere.
  """

  gate_FD: Array
  up_FD: Array
  down_DF: Array


@struct
class Moe:
  """Experts behind a router; matrices are [in, out], which ragged_dot wants."""

  router_XD: Array
  gate_XDF: Array
  up_XDF: Array
  down_XFD: Array


@struct
class Layer:
  """One pre-norm decoder layer, or a stack of them with a leading axis."""

  attn_norm_D: Array
  q_OD: Array  # O = heads x head width, for q as for k and v
  k_OD: Array
  v_OD: Array
  o_DO: Array
  q_norm_H: Array | None
  k_norm_H: Array | None
  mlp_norm_D: Array
  mlp: Mlp | Moe


def linear(x: Array, w_OI: Array) -> Array:
  """x @ w^T, accumulated in float32, in the dtype of x."""
  axes = 'abcdefgh'[: x.ndim - 1]
  return product(f'{axes}i,oi->{axes}o', x, w_OI).astype(x.dtype)


def unembed(hidden_BND: Array, head_VD: Array) -> Array:
  """float32[B, N, V]: logits of normed hidden states."""
  return product('bnd,vd->bnv', hidden_BND, head_VD)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
  """Root-mean-square norm (Zhang & Sennrich, arXiv:1910.07467).

  Statistics are float32; the scale is applied in the dtype of x, as the
  checkpoints were trained.
  """
  y = x.astype(jnp.float32)
  y = y * lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + eps)
  return scale.astype(x.dtype) * y.astype(x.dtype)


def heads(
  x_BTD: Array, w_OD: Array, norm_H: Array | None, head_dim: int, eps: float
) -> Array:
  """[B, T, heads, H]: one of q, k, v, normed per head where there is a norm."""
  x_BTKH = linear(x_BTD, w_OD).reshape(*x_BTD.shape[:2], -1, head_dim)
  return x_BTKH if norm_H is None else rms_norm(x_BTKH, norm_H, eps)


def queries_keys_values(
  layer: Layer, x_BTD: Array, rotation: Array, head_dim: int, eps: float
) -> tuple[Array, Array, Array]:
  """(q [B, T, Q, H], k [B, K, T, H], v [B, K, T, H]); q and k rotated."""
  q_BTQH = heads(x_BTD, layer.q_OD, layer.q_norm_H, head_dim, eps)
  k_BTKH = heads(x_BTD, layer.k_OD, layer.k_norm_H, head_dim, eps)
  v_BTKH = heads(x_BTD, layer.v_OD, None, head_dim, eps)
  return (
    rotate(q_BTQH, rotation),
    rotate(k_BTKH, rotation).swapaxes(1, 2),
    v_BTKH.swapaxes(1, 2),
  )


def mlp(x_BTD: Array, w: Mlp) -> Array:
  """down(silu(gate x) * up x) (Shazeer, arXiv:2002.05202)."""
  gate = jax.nn.silu(linear(x_BTD, w.gate_FD))
  return linear(gate * linear(x_BTD, w.up_FD), w.down_DF)
