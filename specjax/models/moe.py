"""Experts behind a router."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from specjax import sharding
from specjax.models.layers import Moe, linear
from specjax.types import Array


def moe(x_BTD: Array, w: Moe, per_token: int, norm_topk: bool) -> Array:
  """Top-k experts per token, no token dropped (Qwen3, arXiv:2505.09388).

  Tokens are sorted by expert and each expert multiplies its own run. The
  router's softmax is float32; so is the sum over a token's experts.
  """
  run = functools.partial(_routed, per_token=per_token, norm_topk=norm_topk)
  x_TD, mesh = x_BTD.reshape(-1, x_BTD.shape[-1]), sharding.active()
  if mesh is None:
    total_TD = run(x_TD, w)
  else:
    total_TD = _on_shards(run, mesh, x_BTD.shape[0], x_TD, w)
  return total_TD.astype(x_BTD.dtype).reshape(x_BTD.shape)


def _routed(
  x_TD: Array, w: Moe, first: Any = None, *, per_token: int, norm_topk: bool
) -> Array:
  """float32[T, D]; `first` as in `_experts`."""
  logits_TX = linear(x_TD, w.router_XD).astype(jnp.float32)
  share_Tk, expert_Tk = lax.top_k(jax.nn.softmax(logits_TX), per_token)
  if norm_topk:
    share_Tk = share_Tk / jnp.sum(share_Tk, axis=-1, keepdims=True)
  share_Tk = share_Tk.astype(x_TD.dtype)
  return _experts(x_TD, w, share_Tk, expert_Tk, first)


def _experts(
  x_TD: Array, w: Moe, share_Tk: Array, expert_Tk: Array, first: Any = None
) -> Array:
  """float32[T, D]: each token's experts, by their shares.

  `first` is given where experts are split: the id of the first one here. What
  goes to others is sorted to the end, where no run is, and adds nothing.
  """
  experts, per_token = w.gate_XDF.shape[0], share_Tk.shape[1]
  expert_A = expert_Tk.reshape(-1)  # A: one assignment per token and expert
  if first is not None:
    expert_A = expert_A - first
    here_A = (expert_A >= 0) & (expert_A < experts)
    expert_A = jnp.where(here_A, expert_A, experts)
  order_A = jnp.argsort(expert_A, stable=True)
  token_A = order_A // per_token
  size_X = jnp.bincount(expert_A, length=experts).astype(jnp.int32)
  dot = lambda a, b: lax.ragged_dot(
    a, b, size_X, preferred_element_type=jnp.float32
  ).astype(x_TD.dtype)
  rows_AD = x_TD[token_A]
  gate_AF = jax.nn.silu(dot(rows_AD, w.gate_XDF))
  out_AD = dot(gate_AF * dot(rows_AD, w.up_XDF), w.down_XFD)
  out_AD = out_AD * share_Tk.reshape(-1)[order_A][:, None]
  if first is not None:
    out_AD = jnp.where(here_A[order_A][:, None], out_AD, 0)
  return jnp.zeros(x_TD.shape, jnp.float32).at[token_A].add(out_AD)


def _on_shards(
  routed: Callable[..., Array], mesh: Any, batch: int, x_TD: Array, w: Moe
) -> Array:
  """`routed`, of which each shard does its own experts, summed up once.

  SPMD has no rule for a ragged product and would gather all experts' weights.
  """
  part = functools.partial(sharding.spec_of, mesh=mesh)
  specs = Moe(
    router_XD=P(),
    gate_XDF=part('XDF', w.gate_XDF.shape),
    up_XDF=part('XDF', w.up_XDF.shape),
    down_XFD=part('XFD', w.down_XFD.shape),
  )
  experts, _, width = w.gate_XDF.shape
  by_expert = sharding.axes_of('X', experts, mesh)
  axes = by_expert + sharding.axes_of('F', width, mesh, by_expert)
  rows = part('B', (batch,))

  def run(x_TD, w):
    first = None
    if by_expert:
      first = lax.axis_index(by_expert) * w.gate_XDF.shape[0]
    total_TD = routed(x_TD, w, first)
    return lax.psum(total_TD, axes) if axes else total_TD

  return jax.shard_map(
    run, in_specs=(rows, specs), out_specs=rows, check_vma=False
  )(x_TD, w)
