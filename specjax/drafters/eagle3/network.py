"""The network of an EAGLE-3 drafter: one pass over a few rows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.drafters.eagle3.layout import Settings
from specjax.drafters.eagle3.weights import Weights
from specjax.models import block as block_lib
from specjax.models import cache as kv
from specjax.models import layers as nn
from specjax.models.rope import rotation
from specjax.types import Array, struct


@struct
class Read:
  """What one pass gives."""

  hidden_BTD: Array  # fed to the next step; normed where settings say so
  normed_BTD: Array  # what the head reads
  rows: kv.KVCache


def fuse(s: Settings, params: Weights, taps_BTE: Array) -> Array:
  """[B, T, D]: the target's features of a position as one vector."""
  eps = s.config.eps
  if s.norm_before_fc:
    taps_BTE = nn.rms_norm(taps_BTE, params.input_norm_E, eps)
  if s.fc_norm:
    b, t, e = taps_BTE.shape
    taps_BTAD = taps_BTE.reshape(b, t, len(s.inputs), -1)
    taps_BTE = nn.rms_norm(taps_BTAD, params.fc_norm_AD, eps).reshape(b, t, e)
  return nn.linear(taps_BTE, params.fc_DE)


def read(
  s: Settings,
  params: Weights,
  target,
  fused_BTD: Array,
  token_BT: Array,
  position_BT: Array,
  cache: kv.KVCache,
  length_B: Array,
  mask_BTN: Array,
  *,
  earlier: kv.KVCache | None = None,
) -> Read:
  """One pass over T rows; see `transformer.forward` for what they see.

  Args:
    params: bound.
    target: whose embedding is read where the drafter has none.
    fused_BTD: fused features, or the outputs of parents.
    token_BT: int32, of the position behind the feature's.
    position_BT: int32, of the feature.
    cache: rows of this drafter.
    length_B: int32.
    mask_BTN: bool.
    earlier: rows of this round.
  """

  def block(i, layer, h_BTI, x_BTD, turn):
    seen = cache, earlier, length_B, mask_BTN
    return block_lib.block(s.config, layer, i, h_BTI, x_BTD, turn, *seen)

  out = through(s, params, target, fused_BTD, token_BT, position_BT, block)
  return out.replace(rows=block_lib.once_over(out.rows, out.hidden_BTD))


def through(
  s: Settings,
  params: Weights,
  target,
  fused_BTD: Array,
  token_BT: Array,
  position_BT: Array,
  block: Callable[..., tuple[Array, Array, Array]],
) -> Read:
  """`read` with the caller's own attention.

  `block` gets the index and the parameters of a layer, what its queries, keys
  and values are made of, the residual stream and the rotation; it returns what
  `models.block.block_with` does.
  """
  c, first = s.config, params.layers[0]
  embed_VD = target.embed_VD if params.embed_VD is None else params.embed_VD
  token_BTD = embed_VD[token_BT].astype(fused_BTD.dtype)
  hidden_BTD = nn.rms_norm(fused_BTD, params.hidden_norm_D, c.eps)
  x_BTD = hidden_BTD if s.norm_before_residual else fused_BTD
  h_BTI = jnp.concatenate(
    [nn.rms_norm(token_BTD, first.attn_norm_D, c.eps), hidden_BTD], axis=-1
  )
  turn = rotation(position_BT, c.rope, c.head_dim)
  parts = []
  for i, layer in enumerate(params.layers):
    if i:
      h_BTI = nn.rms_norm(x_BTD, layer.attn_norm_D, c.eps)
    x_BTD, k_BKTH, v_BKTH = block(i, layer, h_BTI, x_BTD, turn)
    parts.append(kv.KVCache(k_LBKSH=k_BKTH, v_LBKSH=v_BKTH))
  normed_BTD = nn.rms_norm(x_BTD, params.norm_D, c.eps)
  return Read(
    hidden_BTD=normed_BTD if s.norm_output else x_BTD,
    normed_BTD=normed_BTD,
    rows=jax.tree.map(lambda *xs: jnp.stack(xs), *parts),
  )
