"""An independent, smaller language model as drafter."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.candidates import top_candidates
from specjax.drafters import scratch as scratch_lib
from specjax.drafters.scratch import Scratch
from specjax.models import cache as kv
from specjax.models import names, transformer
from specjax.models.config import ModelConfig
from specjax.tree_ops import causal
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
class Fed:
  """The token of each row of a round, and the row it was proposed by."""

  token_BN: Array  # int32
  parent_BN: Array  # int32; the root's own is 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel:
  """Drafts with a small model that shares the target's vocabulary.

  Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
  arXiv:2211.17192, and Chen et al., arXiv:2302.01318. One step of the small
  model per depth; its state is a KV cache of the committed tokens.

  The deepest draft of a round is proposed and never fed, so after full
  acceptance the cache lacks the row before the next root. Each round therefore
  begins with two tokens, the root and the one before it: where that row existed
  it is written again, where it did not it is filled.
  """

  config: ModelConfig
  stacked: bool = True  # layers in one scan, see `ModelConfig.segments`
  taps: tuple[int, ...] = ()
  shared_rows: bool = False
  max_depth: int | None = None

  def init(self, key, target_config) -> transformer.Weights:
    del target_config  # nothing is shared but the vocabulary
    dtype = jnp.dtype(self.config.dtype)
    return transformer.init(self.config, key, dtype, stacked=self.stacked)

  def tensors(self) -> list[names.Tensor]:
    return names.target_tensors(self.config, self.stacked)

  def head(self, params, target) -> Head:
    return Head(params.head)

  def start(self, params, target, batch: int, capacity: int) -> kv.KVCache:
    return kv.empty(self.config, batch, capacity, params.dtype)

  def begin(
    self, params, target, state: kv.KVCache, round: Round, ask: Ask
  ) -> tuple[Candidates, Scratch]:
    root_B = round.context.length_B - 1
    before_B = jnp.maximum(root_B - 1, 0)
    position_BT = jnp.stack([before_B, root_B], axis=1)
    token_BT = jnp.take_along_axis(round.context.tokens_BT, position_BT, axis=1)
    mask_BTT = causal(*token_BT.shape)
    # A root at position 0 has nothing before it and must not see its double.
    mask_BTT = mask_BTT.at[:, 1, 0].set(root_B > 0)
    out = transformer.forward(
      params, token_BT, position_BT, state, before_B, mask_BTT
    )
    before, root = (_columns(out.rows, slice(i, i + 1)) for i in (0, 1))
    root_B1 = token_BT[:, 1:]
    scratch = scratch_lib.shows(
      scratch_lib.opened(
        round,
        kv.write(state, before, before_B),  # the root's row is not in it
        root,
        Fed(root_B1, jnp.zeros_like(root_B1)),
        ask,
      )
    )
    hidden_B1D = out.hidden_BTD[:, 1:]
    candidates = top_candidates(
      hidden_B1D, self.head(params, target), round, ask.fanout, 0
    )
    return candidates, scratch

  def expand(
    self, params, target, scratch: Scratch, frontier: Frontier
  ) -> tuple[Candidates, Scratch]:
    place = scratch_lib.place(scratch, frontier)
    out = transformer.forward(
      params,
      frontier.token_BW,
      place.position_BW,
      scratch.cache,
      scratch.round.context.length_B - 1,
      place.mask_BWM,
      earlier=scratch.rows,
    )
    fed = Fed(frontier.token_BW, place.parent_BW)
    scratch = scratch_lib.fed(scratch, frontier, place, out.rows, fed)
    candidates = top_candidates(
      out.hidden_BTD,
      self.head(params, target),
      scratch.round,
      scratch.ask.fanout,
      frontier.depth,
    )
    return candidates, scratch

  def commit(
    self,
    params,
    target,
    state: kv.KVCache,
    scratch: Scratch | None,
    accepted: Accepted,
  ) -> kv.KVCache:
    if scratch is not None:
      rows = kv.select(scratch.rows, _path(scratch, accepted.token_BP))
      return kv.write(scratch.cache, rows, accepted.start_B)
    token_BP, start_B = accepted.token_BP, accepted.start_B
    b, p = token_BP.shape
    out = transformer.forward(
      params,
      token_BP,
      start_B[:, None] + jnp.arange(p),
      state,
      start_B,
      causal(b, p),
    )
    return kv.write(state, out.rows, start_B)


def _path(scratch: Scratch, token_BP: Array) -> Array:
  """int32[B, P]: the scratch row of each accepted token.

  A token that was proposed and not fed has none. It ends its path, since it has
  no children; its entry is some other row, written where the next round writes
  first.
  """
  row_B1 = jnp.zeros((token_BP.shape[0], 1), jnp.int32)
  path = [row_B1]
  for depth in range(1, token_BP.shape[1]):
    at = scratch.depth_rows(depth)
    hit_BW = scratch.own.parent_BN[:, at] == row_B1
    hit_BW &= scratch.own.token_BN[:, at] == token_BP[:, depth, None]
    row_B1 = at.start + jnp.argmax(hit_BW, axis=1, keepdims=True)
    path.append(row_B1.astype(jnp.int32))
  return jnp.concatenate(path, axis=1)


def _columns(rows: kv.KVCache, at: slice) -> kv.KVCache:
  return jax.tree.map(lambda x_LBKNH: x_LBKNH[:, :, :, at], rows)
