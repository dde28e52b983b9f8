"""EAGLE-3's training-time test: several steps on the drafter's own outputs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.products import product
from specjax.checks import check_whole, number
from specjax.drafters.eagle3 import drafter as eagle3_drafter
from specjax.drafters.eagle3 import network
from specjax.drafters.eagle3.layout import Settings
from specjax.drafters.eagle3.weights import Weights
from specjax.models import cache as kv
from specjax.models import layers as nn
from specjax.models import whole_text
from specjax.models.block import block_with
from specjax.training import chunked, teacher
from specjax.training.batch import (
  Batch,
  Fixed,
  Metrics,
  asked,
  kept,
  limited,
  moved,
  row_of,
  share,
)
from specjax.types import Array, Head

MEANS = ('wanted', 'rows')
KeysValues = tuple[Array, Array]  # of one layer, [B, K, T, H] each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3:
  """Cross-entropy against the target at every step of an unrolled chain.

  Li et al., "EAGLE-3", arXiv:2503.01840, section 3, with the authors' code.
  With token t the last one whose feature is known, step i (from 0) predicts
  token t + 2 + i:

    loss = sum_i decay^i / M_i * sum_t - sum_v p(v) log q_i,t(v)

  p is the target's law there, over the drafter's tokens alone and renormalised;
  its gradient is that of KL(p || q). A place counts where the predicted token
  is wanted and stands in the text of t, and where the target's likeliest token
  is one of the drafter's. The authors move the mask of wanted tokens one place
  less, which differs at the borders of answers only.

  M_i: with mean 'wanted' (ours) the wanted tokens of step i, known from the
  masks alone, so that texts with long prompts train as fast as others; with
  'rows' (the authors') all places of the rows, padding too.

  Parameters are what `method.bind` makes. The embedding is never trained.
  Figures: `accuracy_i`, how often step i proposes the target's likeliest token,
  of all it has, and `drafted`, how often that token is one of the drafter's.
  """

  drafter: eagle3_drafter.Eagle3
  steps: int = 7
  decay: float = 0.8  # weight of a step over that of the one before it
  mean: str = 'wanted'
  learn_head: bool = True  # its own; the target's never is

  def __post_init__(self):
    check_whole(1, steps=self.steps)
    if not number(self.decay) or not 0 < self.decay <= 1:
      raise ValueError(
        f'decay is {self.decay!r}; give a number above 0, at most 1.'
      )
    if self.mean not in MEANS:
      raise ValueError(
        f'mean is {self.mean!r}; choose one of {", ".join(MEANS)}.'
      )

  @property
  def frozen(self) -> tuple[str, ...]:
    return ('embed_VD',) if self.learn_head else ('embed_VD', 'head_VD')

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    del fixed, key
    if self.mean == 'rows':
      return jnp.full(self.steps, batch.token_BT.size, jnp.float32)
    wanted_BTS = wanted(batch, self.steps)
    return jnp.sum(wanted_BTS, axis=(0, 1), dtype=jnp.float32)

  def loss(
    self, params: Weights, fixed: Fixed, batch: Batch, key: Any, mass_K: Array
  ) -> tuple[Array, Metrics]:
    del key
    still = {
      name: lax.stop_gradient(getattr(params, name)) for name in self.frozen
    }
    params = params.replace(**still)
    view = teacher.read(fixed.target, batch, self.drafter.taps)
    states = unroll(
      self.drafter.settings,
      params,
      fixed.target,
      batch,
      view.taps_BTE,
      self.steps,
    )
    # Step i of row t is asked what row t + 1 + i of the target says.
    beside = lambda steps: jnp.stack(
      [moved(x_BT, 1 + i) for i, x_BT in enumerate(steps)], axis=2
    )
    own_BTSD = beside(states)
    wanted_BTS = beside(jnp.moveaxis(wanted(batch, self.steps), 2, 0))
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    weight_NS = flat(wanted_BTS).astype(jnp.float32)
    nats_NS, agree_NS, drafted_N = _against_target(
      flat(own_BTSD),
      limited(self.drafter.head(params, fixed.target), fixed),
      flat(view.hidden_BTD),
      fixed.target.head,
    )
    nats_S = jnp.sum(nats_NS * weight_NS * drafted_N[:, None], axis=0)
    loss = jnp.sum(self.decay ** jnp.arange(self.steps) * nats_S / mass_K)
    figures = {
      f'accuracy_{i}': share(agree_NS[:, i], weight_NS[:, i])
      for i in range(self.steps)
    }
    return loss, figures | {'drafted': share(drafted_N, weight_NS[:, 0])}


def wanted(batch: Batch, steps: int) -> Array:
  """bool[B, T, S]: is token t + 2 + i to be drafted, in the text of t?"""
  return jnp.stack([asked(batch, 2 + i) for i in range(steps)], axis=2)


def unroll(
  s: Settings,
  params: Weights,
  target,
  batch: Batch,
  taps_BTE: Array,
  steps: int,
) -> tuple[Array, ...]:
  """What the head reads, [B, T, D], of every step.

  Row t of step 0 joins the features of token t with token t + 1. Step i joins
  the row's output at step i - 1 with token t + 1 + i (the text's, never a
  draft), one position on. It sees what the drafter does at depth i below the
  root t + 1: the rows of step 0 up to t, and its own of the steps 1 to i.
  """
  fed_BTD = network.fuse(s, params, taps_BTE)
  made: list[kv.KVCache] = []
  states = []
  for i in range(steps):
    read = network.through(
      s,
      params,
      target,
      fed_BTD,
      moved(batch.token_BT, -1 - i),
      batch.position_BT + i,
      functools.partial(_block, s, batch.text_BT, tuple(made)),
    )
    made.append(read.rows)
    fed_BTD = read.hidden_BTD
    states.append(read.normed_BTD)
  return tuple(states)


def _block(
  s: Settings,
  text_BT: Array,
  made: tuple[kv.KVCache, ...],
  index: int,
  layer: nn.Layer,
  h_BTI: Array,
  x_BTD: Array,
  turn: Array,
) -> tuple[Array, Array, Array]:
  """A layer of one step; `made` are the rows of the steps before it.

  Attention scores are made again for the gradient: those of all steps together
  would be many times the rest.
  """
  earlier = tuple((x.k_LBKSH[index], x.v_LBKSH[index]) for x in made)
  attend = functools.partial(jax.checkpoint(_attend), text_BT, earlier)
  return block_with(s.config, layer, h_BTI, x_BTD, turn, attend)


def _attend(
  text_BT: Array,
  earlier: tuple[KeysValues, ...],
  q_BTQH: Array,
  k_BKTH: Array,
  v_BKTH: Array,
) -> Array:
  """Step 0's rows up to each query's own; of later ones its own row alone.

  The latter (letter R) are one score per step, so nothing is wider than the
  text. As in `whole_text.attention`, queries go in lots.
  """
  b, t, q, h = q_BTQH.shape
  k = k_BKTH.shape[1]
  q_BKGTH = q_BTQH.reshape(b, t, k, q // k, h).transpose(0, 2, 3, 1, 4)
  (k0_BKSH, v0_BKSH), *later = *earlier, (k_BKTH, v_BKTH)
  later = [(x[:, :, None], y[:, :, None]) for x, y in later]
  parts = []
  for at, see_BTS in whole_text.lots(t, text_BT):
    cut = lambda x, at=at: x[..., at, :]
    out_BKGTH = _mixed(
      cut(q_BKGTH),
      k0_BKSH[:, :, : at.stop],
      v0_BKSH[:, :, : at.stop],
      see_BTS,
      [(cut(x), cut(y)) for x, y in later],
    )
    parts.append(out_BKGTH)
  out_BKGTH = jnp.concatenate(parts, axis=3)
  return out_BKGTH.transpose(0, 3, 1, 2, 4).reshape(b, t, q, h)


def _mixed(
  q_BKGTH: Array,
  k_BKSH: Array,
  v_BKSH: Array,
  see_BTS: Array,
  later: list[KeysValues],
) -> Array:
  """One softmax over the keys seen and each query's own, [B, K, 1, T, H]."""
  scale, dtype = q_BKGTH.shape[-1] ** -0.5, q_BKGTH.dtype
  score_BKGTS = product('bkgth,bksh->bkgts', q_BKGTH, k_BKSH) * scale
  score_BKGTS = jnp.where(see_BTS[:, None, None], score_BKGTS, -jnp.inf)
  top_BKGT1 = jnp.max(score_BKGTS, axis=-1, keepdims=True)
  if later:
    k_BKGTRH, v_BKGTRH = (
      jnp.stack(x, axis=4).astype(jnp.float32) for x in zip(*later, strict=True)
    )
    # As products and sums: a matmul of one row by one is slow everywhere.
    wide_BKGT1H = q_BKGTH[..., None, :].astype(jnp.float32)
    own_BKGTR = jnp.sum(wide_BKGT1H * k_BKGTRH, axis=-1) * scale
    own_top_BKGT1 = jnp.max(own_BKGTR, axis=-1, keepdims=True)
    top_BKGT1 = jnp.maximum(top_BKGT1, own_top_BKGT1)
  top_BKGT1 = lax.stop_gradient(top_BKGT1)
  part_BKGTS = jnp.exp(score_BKGTS - top_BKGT1)
  total_BKGT1 = jnp.sum(part_BKGTS, axis=-1, keepdims=True)
  out_BKGTH = product('bkgts,bksh->bkgth', part_BKGTS.astype(dtype), v_BKSH)
  if later:
    part_BKGTR = jnp.exp(own_BKGTR - top_BKGT1)
    total_BKGT1 += jnp.sum(part_BKGTR, axis=-1, keepdims=True)
    out_BKGTH += jnp.sum(part_BKGTR[..., None] * v_BKGTRH, axis=-2)
  return (out_BKGTH / total_BKGT1).astype(dtype)


def _against_target(
  own_NSD: Array, head: Head, teacher_ND: Array, teacher_VD: Array
) -> tuple[Array, Array, Array]:
  """(float32[N, S], bool[N, S], bool[N]) of S guesses at the same law.

  The cross-entropy; whether the target's likeliest token is proposed first;
  whether it is among the head's.
  """

  def some(own_cSD, teacher_cD):
    full_cV = chunked.logits(teacher_cD, teacher_VD)
    row_c, drafted_c = row_of(head, jnp.argmax(full_cV, axis=1))
    p_c1V = jax.nn.softmax(kept(head, full_cV))[:, None]
    own_cSV = product('csd,vd->csv', own_cSD, head.rows_VD)
    nats_cS = jax.nn.logsumexp(own_cSV, axis=2) - jnp.sum(p_c1V * own_cSV, 2)
    mine_cS1 = jnp.take_along_axis(own_cSV, row_c[:, None, None], axis=2)
    first_cS = mine_cS1[..., 0] >= jnp.max(own_cSV, axis=2)
    return nats_cS, first_cS & drafted_c[:, None], drafted_c

  lot = max(chunked.CHUNK // own_NSD.shape[1], 1)
  return chunked.over_rows(some, own_NSD, teacher_ND, chunk=lot)
