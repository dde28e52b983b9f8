"""Qwen3, Qwen3-MoE and LLaMA targets: a pytree of weights and one function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import layers as nn
from specjax.models import whole_text
from specjax.models.block import block, block_with, once_over
from specjax.models.cache import KVCache
from specjax.models.config import ModelConfig
from specjax.models.rope import rotation
from specjax.types import Array, static, struct


@struct
class Weights:
  """A target's parameters.

  `layers` is a tuple of stacks, each a run of like layers with a leading axis;
  a forward pass scans a stack and steps from one to the next.
  """

  embed_VD: Array
  layers: tuple[nn.Layer, ...]
  norm_D: Array
  head_VD: Array | None  # None: tied to the embedding
  config: ModelConfig = static()

  @property
  def head(self) -> Array:
    return self.embed_VD if self.head_VD is None else self.head_VD

  @property
  def dtype(self):
    return self.embed_VD.dtype


@struct
class Output:
  """What a forward pass over T rows returns."""

  hidden_BTD: Array  # after the final norm
  taps_BTE: Array  # tapped layers' outputs side by side
  rows: KVCache  # keys and values of these T rows


def abstract(config: ModelConfig, dtype, *, stacked: bool = True) -> Weights:
  """Shapes of all parameters: the one source for init, loading and restore."""
  leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  d, h = config.width, config.head_dim
  q, kv = config.q_heads * h, config.kv_heads * h

  def stack(first: int, n: int) -> nn.Layer:
    if first in config.sparse_layers:
      x, f = config.experts, config.expert_mlp
      mlp = nn.Moe(
        router_XD=leaf(n, x, d),
        gate_XDF=leaf(n, x, d, f),
        up_XDF=leaf(n, x, d, f),
        down_XFD=leaf(n, x, f, d),
      )
    else:
      f = config.mlp
      mlp = nn.Mlp(
        gate_FD=leaf(n, f, d), up_FD=leaf(n, f, d), down_DF=leaf(n, d, f)
      )
    return nn.Layer(
      attn_norm_D=leaf(n, d),
      q_OD=leaf(n, q, d),
      k_OD=leaf(n, kv, d),
      v_OD=leaf(n, kv, d),
      o_DO=leaf(n, d, q),
      q_norm_H=leaf(n, h) if config.qk_norm else None,
      k_norm_H=leaf(n, h) if config.qk_norm else None,
      mlp_norm_D=leaf(n, d),
      mlp=mlp,
    )

  return Weights(
    embed_VD=leaf(config.vocab, d),
    layers=tuple(stack(i, n) for i, n in config.segments(stacked)),
    norm_D=leaf(d),
    head_VD=None if config.tied else leaf(config.vocab, d),
    config=config,
  )


def init(
  config: ModelConfig,
  key: Array,
  dtype=jnp.float32,
  *,
  stacked: bool = True,
  scale: float = 0.02,
) -> Weights:
  """Random parameters: matrices normal with std `scale`, norms one."""
  return init_like(abstract(config, dtype, stacked=stacked), key, scale)


def init_like(shapes, key: Array, scale: float = 0.02):
  """Random values for any tree of shapes; what is called a norm becomes one."""
  leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
  values = []
  for i, (path, leaf) in enumerate(leaves):
    if 'norm' in jax.tree_util.keystr(path[-1:]):
      values.append(jnp.ones(leaf.shape, leaf.dtype))
    else:
      draw = jax.random.normal(jax.random.fold_in(key, i), leaf.shape)
      values.append((scale * draw).astype(leaf.dtype))
  return jax.tree_util.tree_unflatten(tree, values)


def scans(stacked: bool | None) -> bool:
  """Whether layers are stacked: as asked, or wherever that costs nothing.

  Slicing a layer out of a stack copies it on CPU, see `ModelConfig.segments`.
  """
  return jax.default_backend() != 'cpu' if stacked is None else stacked


def restack(weights: Weights, stacked: bool) -> Weights:
  """The same weights with layers stacked for scan, or one by one."""
  config = weights.config
  singles = [
    jax.tree.map(lambda x, i=i: x[i : i + 1], stack)
    for stack in weights.layers
    for i in range(stack.attn_norm_D.shape[0])
  ]
  runs = config.segments(stacked)
  join = lambda *xs: jnp.concatenate(xs) if len(xs) > 1 else xs[0]
  return weights.replace(
    layers=tuple(jax.tree.map(join, *singles[i : i + n]) for i, n in runs)
  )


def layer_inputs(ids: tuple[int, ...]) -> tuple[int, ...]:
  """Taps for papers that name a layer's *input*.

  Here, as in DFlash, tap i is the residual stream after layer i, before any
  norm. EAGLE-3 names the stream that enters layer i: that is tap i - 1, and -1
  is the embedding.
  """
  return tuple(i - 1 for i in ids)


def check_taps(taps: tuple[int, ...], layers: int) -> None:
  """Raises ValueError unless every tap is one layer's output, named once."""
  bad = [i for i in taps if not -1 <= i < layers]
  if bad or len(set(taps)) != len(taps):
    raise ValueError(
      f'taps {taps} do not fit a target of {layers} layers: name layers '
      f'-1 (the embedding) to {layers - 1}, each once.'
    )


def forward(
  weights: Weights,
  token_BT: Array,
  position_BT: Array,
  cache: KVCache,
  length_B: Array,
  mask_BTN: Array,
  *,
  taps: tuple[int, ...] = (),
  earlier: KVCache | None = None,
) -> Output:
  """One pass over T new rows: a prompt chunk, a token, a block or a tree.

  Args:
    weights: the target; compute runs in its dtype, norms, softmax and rotation
      in float32.
    token_BT: int32.
    position_BT: int32, absolute; siblings of a tree share one.
    cache: committed rows, of which the first `length_B` are seen by all.
    length_B: int32.
    mask_BTN: bool, what row t sees of the rows `earlier` and of these T.
    taps: layers whose outputs are returned, see `layer_inputs`.
    earlier: rows of this round that are not committed (a drafter's own).

  Returns:
    Normed hidden states (apply `unembed` to those rows that need logits),
    tapped outputs, and the T new rows for the cache.
  """
  config = weights.config
  turn = rotation(position_BT, config.rope, config.head_dim)

  def apply(layer, index, x_BTD):
    h_BTD = nn.rms_norm(x_BTD, layer.attn_norm_D, config.eps)
    seen = cache, earlier, length_B, mask_BTN
    return block(config, layer, index, h_BTD, x_BTD, turn, *seen)

  return _through(weights, token_BT, taps, apply)


def read(
  weights: Weights,
  token_BT: Array,
  *,
  position_BT: Array | None = None,
  text_BT: Array | None = None,
  taps: tuple[int, ...] = (),
) -> Output:
  """A pass over whole texts, without a cache.

  Args:
    weights: see `forward`.
    token_BT: int32.
    position_BT: int32; None counts from 0.
    text_BT: int32, where a row holds several texts: none sees another.
    taps: see `forward`.
  """
  config = weights.config
  if position_BT is None:
    position_BT = jnp.broadcast_to(
      jnp.arange(token_BT.shape[1]), token_BT.shape
    )
  turn = rotation(position_BT, config.rope, config.head_dim)

  def apply(layer, index, x_BTD):
    del index
    h_BTD = nn.rms_norm(x_BTD, layer.attn_norm_D, config.eps)
    attend = lambda q_BTQH, k_BKTH, v_BKTH: whole_text.attention(
      q_BTQH, k_BKTH, v_BKTH, text_BT, config.head_dim**-0.5
    )
    return block_with(config, layer, h_BTD, x_BTD, turn, attend)

  return _through(weights, token_BT, taps, apply)


def _through(weights: Weights, token_BT: Array, taps, apply) -> Output:
  """Embedding, all layers, final norm; keeps what the taps name.

  `apply` takes a layer, its index and the residual stream, and returns the
  stream behind the layer with the layer's keys and values.
  """
  x_BTD = weights.embed_VD[token_BT]
  slot_of = {layer: slot for slot, layer in enumerate(taps)}
  # One slot more than there are taps: where all other layers write.
  spare = len(taps)
  tapped = jnp.zeros((spare + 1, *x_BTD.shape), x_BTD.dtype)
  if -1 in slot_of:
    tapped = tapped.at[slot_of[-1]].set(x_BTD)

  def step(carry, layer_and_index):
    x_BTD, tapped = carry
    layer, index, slot = layer_and_index
    x_BTD, k_BKTH, v_BKTH = apply(layer, index, x_BTD)
    if spare:
      tapped = lax.dynamic_update_index_in_dim(tapped, x_BTD, slot, 0)
    return (x_BTD, tapped), KVCache(k_LBKSH=k_BKTH, v_LBKSH=v_BKTH)

  carry, parts, first = (x_BTD, tapped), [], 0
  for stack in weights.layers:
    n = stack.attn_norm_D.shape[0]
    slots = [slot_of.get(i, spare) for i in range(first, first + n)]
    if n == 1:
      layer = jax.tree.map(lambda x: x[0], stack)
      carry, new = step(carry, (layer, first, slots[0]))
      new = jax.tree.map(lambda x: x[None], new)
    else:
      index = jnp.arange(first, first + n)
      carry, new = lax.scan(step, carry, (stack, index, jnp.asarray(slots)))
    parts.append(new)
    first += n
  rows = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
  x_BTD, tapped = carry
  b, t, d = x_BTD.shape
  taps_BTE = tapped[:spare].transpose(1, 2, 0, 3).reshape(b, t, spare * d)
  return Output(
    hidden_BTD=nn.rms_norm(x_BTD, weights.norm_D, weights.config.eps),
    taps_BTE=taps_BTE,
    rows=once_over(rows, x_BTD),
  )
