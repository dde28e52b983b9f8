"""One decoder layer behind its first norm, with any attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.models import layers as nn
from specjax.models.cache import KVCache, concat
from specjax.models.moe import moe
from specjax.ops import tree_attention
from specjax.types import Array


def block(
  config, layer, index, h_BTI, x_BTD, turn, cache, earlier, length_B, mask_BTN
) -> tuple[Array, Array, Array]:
  """A layer behind its first norm: (x_BTD, keys, values).

  `h` is what queries, keys and values are made of, in any width; `x` is the
  residual stream. Caches are those of all layers, of which this is `index`: the
  op takes what it needs, which need not be a layer's whole cache.
  """

  def attend(q_BTQH, k_BKTH, v_BKTH):
    new = KVCache(k_LBKSH=k_BKTH[None], v_LBKSH=v_BKTH[None])
    if earlier is not None:
      new = concat(jax.tree.map(lambda x: x[index][None], earlier), new)
    return tree_attention(
      q_BTQH,
      cache.k_LBKSH,
      cache.v_LBKSH,
      length_B,
      new.k_LBKSH[0],
      new.v_LBKSH[0],
      mask_BTN,
      index,
      scale=config.head_dim**-0.5,
    )

  return block_with(config, layer, h_BTI, x_BTD, turn, attend)


def block_with(
  config, layer, h_BTI, x_BTD, turn, attend
) -> tuple[Array, Array, Array]:
  """`block` with an attention of the caller's own.

  `attend` takes rotated queries [B, T, Q, H], keys and values [B, K, T, H] of
  the T rows, and returns [B, T, Q, H].
  """
  q_BTQH, k_BKTH, v_BKTH = nn.queries_keys_values(
    layer, h_BTI, turn, config.head_dim, config.eps
  )
  out_BTQH = attend(q_BTQH, k_BKTH, v_BKTH)
  out_BTO = out_BTQH.reshape(*x_BTD.shape[:2], -1)
  x_BTD = x_BTD + nn.linear(out_BTO, layer.o_DO)
  h_BTD = nn.rms_norm(x_BTD, layer.mlp_norm_D, config.eps)
  if isinstance(layer.mlp, nn.Moe):
    y_BTD = moe(h_BTD, layer.mlp, config.experts_per_token, config.norm_topk)
  else:
    y_BTD = nn.mlp(h_BTD, layer.mlp)
  return x_BTD + y_BTD, k_BKTH, v_BKTH


def once_over(rows: KVCache, x_BTD: Array) -> KVCache:
  """The same rows, known to XLA only when the whole pass is over.

  The last layer's keys do not wait for its attention. So their write might come
  before that layer has read the cache, and XLA would copy the whole cache every
  round to be safe (jax 0.10.2 on CPU, unstacked layers, where it also drops an
  optimization_barrier). No hidden state that is worth a token is infinite.
  """
  over_BKTH = (x_BTD[:, 0, 0] != jnp.inf)[:, None, None, None]
  return jax.tree.map(lambda x: jnp.where(over_BKTH, x, 0), rows)
