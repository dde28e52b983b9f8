"""DFlash: a whole block of guesses in one bidirectional pass."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import candidates
from specjax.models import cache as kv
from specjax.models import layers as nn
from specjax.models import transformer
from specjax.models.config import ModelConfig
from specjax.models.names import Tensor, layer_tensors
from specjax.models.rope import rotate, rotation
from specjax.tree_ops import causal, root_token
from specjax.types import (
  Accepted,
  Array,
  Ask,
  Candidates,
  Frontier,
  Head,
  Round,
  struct,
)


@struct
class Weights:
  """A DFlash drafter's parameters; embedding and head are the target's."""

  fc_DE: Array
  hidden_norm_D: Array
  layers: tuple[nn.Layer, ...]  # stacks, as a target's
  norm_D: Array


@struct
class Hidden:
  """What the last layer says about the block's masks."""

  raw_BTD: Array  # the residual stream; row d - 1 is d behind the anchor
  normed_BTD: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlash:
  """Fills the masks behind the last committed token, all at once.

  Chen, Liang & Liu, "DFlash: Block Diffusion for Flash Speculative Decoding",
  arXiv:2602.06036. The block is [anchor, mask, ..., mask] at its absolute
  positions; row d predicts the token at its own place, from the context and the
  anchor alone, so that one law serves a whole depth of the tree.

  The context enters as keys and values: the target's tapped outputs of every
  committed position are fused once, and each layer projects them with its own
  key and value matrices, without its input norm. They are the state, written
  by `commit`. The anchor has no such row yet: its features come with the next
  round.

  A layer is a Qwen3 layer, a block over a cache is what the target's `forward`
  computes, and so the drafter runs that very function with its own layers.
  """

  config: ModelConfig  # the drafter's layers, vocabulary and rope
  block: int  # anchor and masks, as trained
  mask_id: int
  taps: tuple[int, ...]  # target layers whose outputs it reads
  causal: bool = False  # rows see the block up to themselves only
  stacked: bool = False  # layers in one scan, see `ModelConfig.segments`
  shared_rows: bool = True

  @property
  def max_depth(self) -> int:
    return self.block - 1

  def abstract(self, dtype) -> Weights:
    """Shapes of the parameters."""
    like = transformer.abstract(self.config, dtype, stacked=self.stacked)
    d = self.config.width
    fc_DE = jax.ShapeDtypeStruct((d, d * len(self.taps)), jnp.dtype(dtype))
    return Weights(
      fc_DE=fc_DE,
      hidden_norm_D=like.norm_D,
      layers=like.layers,
      norm_D=like.norm_D,
    )

  def init(self, key, target_config) -> Weights:
    del target_config  # `from_hf` compared it
    return transformer.init_like(self.abstract(self.config.dtype), key)

  def tensors(self) -> list[Tensor]:
    """The key map of the published checkpoints (no `model.` prefix)."""
    rows = [
      Tensor('fc_DE', ('fc.weight',)),
      Tensor('hidden_norm_D', ('hidden_norm.weight',)),
      Tensor('norm_D', ('norm.weight',)),
    ]
    for i, (first, n) in enumerate(self.config.segments(self.stacked)):
      rows += layer_tensors(
        f'layers.{i}', '', range(first, first + n), qk_norm=True
      )
    return rows

  def head(self, params, target) -> Head:
    return Head(target.head)

  def start(self, params, target, batch, capacity) -> kv.KVCache:
    return kv.empty(self.config, batch, capacity, target.dtype)

  def begin(self, params, target, state, round: Round, ask: Ask):
    check_depth('DFlash', ask.depth, self.block)
    hidden = self.hidden(params, target, state, round.context)
    # A tree without depth reads nothing, but needs a row to have a shape.
    rows = max(ask.depth, 1)
    table = candidates.top_candidates(
      hidden.normed_BTD[:, :rows],
      self.head(params, target),
      round,
      ask.fanout,
      range(rows),
      features=ask.features,
    )
    return _row(table, 0, 1), table

  def expand(self, params, target, table: Candidates, frontier: Frontier):
    width = frontier.token_BW.shape[1]
    return _row(table, frontier.depth, width), table

  def commit(self, params, target, state, scratch, accepted: Accepted):
    rows = self.context_rows(params, accepted.taps_BPE, accepted.start_B)
    return kv.write(state, rows, accepted.start_B)

  def fuse(self, params: Weights, taps_BPE: Array) -> Array:
    """[B, P, D]: the target's tapped outputs as one vector per position."""
    fused_BPD = nn.linear(taps_BPE, params.fc_DE)
    return nn.rms_norm(fused_BPD, params.hidden_norm_D, self.config.eps)

  def context_rows(
    self, params: Weights, taps_BPE: Array, start_B: Array
  ) -> kv.KVCache:
    """Keys and values of all layers for positions start, start + 1, ..."""
    c = self.config
    fused_BPD = self.fuse(params, taps_BPE)
    position_BP = start_B[:, None] + jnp.arange(taps_BPE.shape[1])
    turn = rotation(position_BP, c.rope, c.head_dim)

    project = lambda layer: kv.KVCache(
      *self.keys_values(layer, fused_BPD, turn)
    )
    parts = [jax.vmap(project)(stack) for stack in params.layers]
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)

  def keys_values(
    self, layer: nn.Layer, fused_BPD: Array, turn: Array
  ) -> tuple[Array, Array]:
    """One layer's context rows [B, K, P, H]; keys are rotated by `turn`."""
    c = self.config
    k_BPKH = nn.heads(fused_BPD, layer.k_OD, layer.k_norm_H, c.head_dim, c.eps)
    v_BPKH = nn.heads(fused_BPD, layer.v_OD, None, c.head_dim, c.eps)
    return rotate(k_BPKH, turn).swapaxes(1, 2), v_BPKH.swapaxes(1, 2)

  def hidden(
    self, params: Weights, target, state: kv.KVCache, context
  ) -> Hidden:
    """The block pass; always the whole block, as it was trained."""
    start_B = context.length_B - 1  # the anchor's position
    anchor_B1 = root_token(context)[:, None]
    b, t = anchor_B1.shape[0], self.block
    masks_BT = jnp.full((b, t - 1), self.mask_id, jnp.int32)
    see_BTT = causal(b, t) if self.causal else jnp.ones((b, t, t), bool)
    last = self.config.layers - 1
    out = transformer.forward(
      transformer.Weights(
        embed_VD=target.embed_VD,
        layers=params.layers,
        norm_D=params.norm_D,
        head_VD=None,  # the head is applied where candidates are taken
        config=self.config,
      ),
      jnp.concatenate([anchor_B1, masks_BT], axis=1),
      start_B[:, None] + jnp.arange(t),
      state,
      start_B,
      see_BTT,
      taps=(last,),
    )
    return Hidden(raw_BTD=out.taps_BTE[:, 1:], normed_BTD=out.hidden_BTD[:, 1:])


def check_depth(name: str, depth: int, block: int) -> None:
  """Raises ValueError for a tree deeper than the block can fill."""
  if depth > block - 1:
    raise ValueError(
      f'{name} fills {block - 1} positions (its block is {block}), the tree '
      f'asks for {depth}; give at most {block} nodes in a chain.'
    )


def _row(table: Candidates, depth: int, width: int) -> Candidates:
  """The law of one depth, for every node of that depth."""

  def pick(x_BT: Array) -> Array:
    shape = (x_BT.shape[0], width, *x_BT.shape[2:])
    return jnp.broadcast_to(x_BT[:, depth : depth + 1], shape)

  return jax.tree.map(pick, table)
