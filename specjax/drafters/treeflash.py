"""TreeFlash: block marginals corrected by the token just before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.candidates import top_candidates
from specjax.checks import check_whole
from specjax.drafters import dflash, dflash_config
from specjax.models import layers as nn
from specjax.models import transformer
from specjax.models.config import ModelConfig
from specjax.models.names import Tensor
from specjax.tree_ops import root_token, take_rows
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

AR_EPS = 1e-6  # fixed, whatever rms_norm_eps says


@struct
class Correction:
  """A gated mlp that reads the previous token beside the hidden state.

  `up_gate_OI` takes [previous token; hidden] to [up; gate].
  """

  norm_D: Array
  up_gate_OI: Array
  bias_O: Array
  down_DF: Array


@struct
class Weights:
  backbone: dflash.Weights
  correction: Correction


@struct
class Tables:
  """All transitions a tree may take below the root.

  Entry [t, m] is the law behind the m-th likeliest plain token of depth t + 1.
  """

  parent_BTM: Array  # int32, plain tokens
  token_BTMC: Array  # int32
  logq_BTMC: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeFlash:
  """First-order laws q(x_d | context, x_{d-1}) from one pass.

  arXiv:2606.03819 and its reference code (github.com/ETH-DISCO/TreeFlash). The
  backbone is a DFlash. To keep the depth of the computation constant, previous
  tokens are not those of the tree but the backbone's own `plain` likeliest at
  each position; all (position, previous token) pairs go through the correction
  and the head at once. A node whose token is not among them stays a leaf.

  Scores are at temperature 1, whatever the target samples with.
  """

  backbone: dflash.DFlash
  plain: int = 16  # previous tokens kept per position
  shared_rows: bool = False

  @property
  def taps(self) -> tuple[int, ...]:
    return self.backbone.taps

  @property
  def max_depth(self) -> int:
    return self.backbone.max_depth

  def init(self, key, target_config) -> Weights:
    """The correction starts as zero, which is plain DFlash."""
    c = self.backbone.config
    leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(c.dtype))
    shapes = Correction(
      norm_D=leaf(c.width),
      up_gate_OI=leaf(2 * c.mlp, 2 * c.width),
      bias_O=leaf(2 * c.mlp),
      down_DF=leaf(c.width, c.mlp),
    )
    backbone_key, key = jax.random.split(key)
    correction = transformer.init_like(shapes, key)
    return Weights(
      backbone=self.backbone.init(backbone_key, target_config),
      correction=correction.replace(
        bias_O=jnp.zeros_like(correction.bias_O),
        down_DF=jnp.zeros_like(correction.down_DF),
      ),
    )

  def tensors(self) -> list[Tensor]:
    """The backbone under `model.`, the correction beside it."""
    rows = [
      Tensor(f'backbone.{t.path}', tuple(f'model.{n}' for n in t.names))
      for t in self.backbone.tensors()
    ]
    names = {
      'norm_D': 'norm.weight',
      'up_gate_OI': 'ug.weight',
      'bias_O': 'ug.bias',
      'down_DF': 'd.weight',
    }
    return rows + [
      Tensor(f'correction.{ours}', (f'ar_approximation.{theirs}',))
      for ours, theirs in names.items()
    ]

  def head(self, params, target) -> Head:
    return Head(target.head)

  def start(self, params, target, batch, capacity):
    return self.backbone.start(params.backbone, target, batch, capacity)

  def begin(self, params, target, state, round: Round, ask: Ask):
    """The tables: 1 + (depth - 1) * plain rows of the head, in one product."""
    dflash.check_depth('TreeFlash', ask.depth, self.backbone.block)
    depth, context = max(ask.depth, 1), round.context
    head = self.head(params, target)
    hidden = self.backbone.hidden(params.backbone, target, state, context)
    # Coupled like their children: what the target will not draw has none.
    plain_BTD = hidden.normed_BTD[:, : depth - 1]
    parent_BTM = top_candidates(
      plain_BTD, head, round, self.plain, range(depth - 1)
    ).token_BWC
    b, _, plain = parent_BTM.shape
    anchor_B1 = root_token(context)[:, None]
    before_BW = jnp.concatenate([anchor_B1, parent_BTM.reshape(b, -1)], axis=1)
    below_W = np.repeat(np.arange(1, depth), plain)
    at_W = np.append([0], below_W).astype(int)  # float where it is empty
    corrected_BWD = self.correct(
      params,
      target.embed_VD[before_BW],
      hidden.raw_BTD[:, at_W],
      hidden.normed_BTD[:, at_W],
    )
    rows = top_candidates(corrected_BWD, head, round, ask.fanout, at_W)
    below = lambda x_BWC: x_BWC[:, 1:].reshape(
      b, depth - 1, plain, x_BWC.shape[-1]
    )
    root = Candidates(rows.token_BWC[:, :1], rows.logq_BWC[:, :1])
    return root, Tables(
      parent_BTM=parent_BTM,
      token_BTMC=below(rows.token_BWC),
      logq_BTMC=below(rows.logq_BWC),
    )

  def expand(self, params, target, tables: Tables, frontier: Frontier):
    at = frontier.depth - 1
    parent_BM = tables.parent_BTM[:, at]
    match_BWM = frontier.token_BW[..., None] == parent_BM[:, None]
    index_BW = jnp.argmax(match_BWM, axis=-1)
    logq_BWC = take_rows(tables.logq_BTMC[:, at], index_BW)
    known_BW1 = jnp.any(match_BWM, axis=-1, keepdims=True)
    return Candidates(
      take_rows(tables.token_BTMC[:, at], index_BW),
      jnp.where(known_BW1, logq_BWC, -jnp.inf),
    ), tables

  def commit(self, params, target, state, scratch, accepted: Accepted):
    return self.backbone.commit(params.backbone, target, state, None, accepted)

  def correct(
    self, params: Weights, before: Array, raw: Array, normed: Array
  ) -> Array:
    """Hidden states [..., D], normed for the head, given the token before.

    Reads the normed state, adds to the raw one, and norms again.
    """
    w = params.correction
    before = nn.rms_norm(before, w.norm_D, AR_EPS)
    both = jnp.concatenate([before, normed], axis=-1)
    up_gate = nn.linear(both, w.up_gate_OI) + w.bias_O.astype(both.dtype)
    up, gate = jnp.split(up_gate, 2, axis=-1)
    raw = raw + nn.linear(jax.nn.silu(gate) * up, w.down_DF)
    return nn.rms_norm(raw, params.backbone.norm_D, self.backbone.config.eps)


def from_hf(
  config: Mapping[str, Any],
  target_config: ModelConfig,
  *,
  plain: int = 16,
  stacked: bool = False,
) -> TreeFlash | dflash.DFlash:
  """Reads a drafter's parsed config.json.

  `ar_approximation` stands in `treeflash_config` or on top; where it is null
  the drafter is the plain backbone.

  Raises:
    ValueError: an approximation that is not implemented; else see
      `dflash_config.from_hf`.
  """
  backbone = dflash_config.from_hf(config, target_config, stacked=stacked)
  own = config.get('treeflash_config') or {}
  kind = own.get('ar_approximation', config.get('ar_approximation'))
  if kind is None:
    return backbone
  if kind != 'swiglu':
    raise ValueError(
      f"ar_approximation is {kind!r}; only 'swiglu' and null are supported."
    )
  check_whole(1, plain=plain)
  return TreeFlash(backbone=backbone, plain=plain)
