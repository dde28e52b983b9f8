"""What a block drafter is trained for: DFlash's loss and JetSpec's.

Letters as in `training.blocks`: A blocks of a row, T slots of a block, and N
for all slots in one line.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp
from jax import lax

from specjax.checks import check_whole, number
from specjax.drafters import dflash
from specjax.training import blocks, chunked, teacher
from specjax.training.batch import (
  Batch,
  Fixed,
  Metrics,
  limited,
  row_of,
  share,
)
from specjax.tree_ops import take_rows
from specjax.types import Array, Head, struct

KINDS = ('ce', 'kl')


class Draws(Protocol):
  """An objective over blocks."""

  drafter: Any  # with `max_depth` and `head`
  anchors: int
  gamma: float
  prompt_end: bool


@struct
class Lot:
  """The blocks of one draw, and how much their slots count."""

  anchor_BA: Array  # int32
  valid_BA: Array  # bool
  slots: blocks.Slots
  weight_BAT: Array  # float32


@struct
class Told:
  """What target and drafter say of a lot."""

  view: teacher.Teacher
  raw_BATD: Array
  normed_BATD: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """Every mask of a block learns the token at its own place.

  With anchors a and slots k = 1 .. block - 1, where token a + k is wanted:

    loss = sum_a,k w_k l(a, k) / sum_a,k w_k,   w_k = exp(-(k - 1) / gamma)
    'ce':  l = -log q_k(x_a+k | x_<a, x_a)
    'kl':  l = heat^2 KL(p(. | x_<a+k) || q_k), both at temperature `heat`

  'ce' is DFlash (Chen, Liang & Liu, "DFlash: Block Diffusion for Flash
  Speculative Decoding", arXiv:2602.06036): gamma 7 for blocks of 16, 5 for 10,
  4 for 8, and 512 anchors in 3072 tokens. 'kl' is JetSpec (arXiv:2606.18394,
  equations 8 and 9), whose drafter is causal and whose main runs have gamma 0,
  that is w = 1; its heat is not given, 1 is our choice.

  `pace` is no part of either paper. It is the alpha of D-PACE, a community's
  weights, which replace those above by what the drafter itself makes of the
  block, without gradient:

    s_k = (1 - alpha) q_k(x_a+k) + alpha,  u_k = s_1 .. s_k,  w_k = sum_j>=k u_j

  The loss is then divided by the number of blocks (the original divides by that
  of texts, a constant of ours).

  A slot whose token has no row in a limited vocabulary does not count. Figures:
  the mean loss, `accuracy` of all wanted slots, and `prefix`, how far a block
  is right from its first slot on, plus 1: what greedy decoding would accept,
  but for blocks that their text cuts short. Right is the token of the text for
  'ce', the target's likeliest for 'kl'.
  """

  drafter: dflash.DFlash
  anchors: int = 32  # blocks per row
  gamma: float = 7.0  # 0: all slots alike
  kind: str = 'ce'
  heat: float = 1.0
  pace: float | None = None
  prompt_end: bool = False  # see `blocks.draw_anchors`
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    check(self.anchors, self.gamma, self.kind, self.heat)
    if self.pace is None:
      return
    if self.kind != 'ce':
      raise ValueError(f"pace weighs 'ce' only; kind is {self.kind!r}.")
    if not number(self.pace) or not 0 <= self.pace <= 1:
      raise ValueError(f'pace is {self.pace!r}; give a number from 0 to 1.')

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    lot = draw(self, fixed, batch, key)
    counted = lot.weight_BAT if self.pace is None else lot.valid_BA
    return jnp.sum(counted, dtype=jnp.float32)[None]

  def loss(
    self,
    params: dflash.Weights,
    fixed: Fixed,
    batch: Batch,
    key: Array,
    mass_K: Array,
  ) -> tuple[Array, Metrics]:
    lot = draw(self, fixed, batch, key)
    told = tell(self.drafter, params, fixed, batch, lot)
    head = limited(self.drafter.head(params, fixed.target), fixed)
    value_BAT, right_BAT = measure(
      self.kind,
      told.normed_BATD,
      head,
      fixed,
      told.view,
      lot.slots,
      heat=self.heat,
    )
    if self.pace is not None:
      lot = lot.replace(weight_BAT=paced(value_BAT, lot.weight_BAT, self.pace))
    figures = {self.kind: mean(value_BAT, lot)} | progress(right_BAT, lot)
    return figures[self.kind][0] / mass_K[0], figures


def check(anchors: int, gamma: float, kind: str, heat: float) -> None:
  """Raises ValueError for settings that no block objective has."""
  check_whole(1, anchors=anchors)
  if not number(gamma) or gamma < 0:
    raise ValueError(
      f'gamma is {gamma!r}; give a number above 0, or 0 for equal weights.'
    )
  if kind not in KINDS:
    raise ValueError(f'kind is {kind!r}; choose one of {", ".join(KINDS)}.')
  if not number(heat) or heat <= 0:
    raise ValueError(f'heat is {heat!r}; give a number above 0.')


def draw(of: Draws, fixed: Fixed, batch: Batch, key: Array) -> Lot:
  """The blocks of a batch under this key; a slot weighs w_k or 0."""
  anchor_BA, valid_BA = blocks.draw_anchors(
    batch, key, of.anchors, prompt_end=of.prompt_end
  )
  depth = of.drafter.max_depth
  slots = blocks.slots(batch, anchor_BA, valid_BA, depth + 1)
  head = limited(of.drafter.head(None, fixed.target), fixed)
  _, there_BAT = row_of(head, slots.token_BAT)
  weight_T = jnp.ones(depth)
  if of.gamma > 0:
    weight_T = jnp.exp(-jnp.arange(depth) / of.gamma)
  return Lot(
    anchor_BA=anchor_BA,
    valid_BA=valid_BA,
    slots=slots,
    weight_BAT=jnp.where(slots.wanted_BAT & there_BAT, weight_T, 0.0),
  )


def tell(
  drafter: dflash.DFlash,
  params: dflash.Weights,
  fixed: Fixed,
  batch: Batch,
  lot: Lot,
) -> Told:
  """The target's pass over the texts, and the block drafter's behind it."""
  view = teacher.read(fixed.target, batch, drafter.taps)
  raw_BATD, normed_BATD = blocks.block_hidden(
    drafter, params, fixed.target, batch, view, lot.anchor_BA, lot.valid_BA
  )
  return Told(view=view, raw_BATD=raw_BATD, normed_BATD=normed_BATD)


def measure(
  kind: str,
  normed_BATD: Array,
  head: Head,
  fixed: Fixed,
  view: teacher.Teacher,
  slots: blocks.Slots,
  *,
  heat: float,
) -> tuple[Array, Array]:
  """(float32[B, A, T], bool[B, A, T]): what a slot loses, is it right?

  Args:
    kind: see `Block`, which also says what is right.
    normed_BATD: as the head reads them.
    head: the drafter's rows.
    fixed: the target, whose own head makes p.
    view: the target's.
    slots: the labels.
    heat: of 'kl'.
  """
  shape = normed_BATD.shape[:3]
  normed_ND = flat(normed_BATD)
  if kind == 'ce':
    token_N = slots.token_BAT.reshape(-1)
    logq_NA, best_N = chunked.log_probs(normed_ND, head, token_N[:, None])
    value_N, right_N = -logq_NA[:, 0], best_N == token_N
  else:
    value_N, right_N = chunked.divergence(
      normed_ND,
      head,
      flat(take_rows(view.hidden_BTD, slots.before_BAT)),
      fixed.target.head,
      heat=heat,
    )
    value_N = heat**2 * value_N
  return value_N.reshape(shape), right_N.reshape(shape)


def flat(x_BATD: Array) -> Array:
  """[N, D]."""
  return x_BATD.reshape(-1, x_BATD.shape[-1])


def mean(value_BAT: Array, lot: Lot) -> Array:
  """A figure: the weighted sum, which is the loss, and its weight."""
  return share(value_BAT.reshape(-1), lot.weight_BAT.reshape(-1))


def progress(right_BAT: Array, lot: Lot) -> Metrics:
  """`accuracy` and `prefix`, see `Block`."""
  wanted_BAT = lot.slots.wanted_BAT
  run_BAT = jnp.cumprod(right_BAT & wanted_BAT, axis=-1, dtype=jnp.float32)
  return {
    'accuracy': share(right_BAT, wanted_BAT),
    'prefix': share(1 + jnp.sum(run_BAT, axis=-1), lot.valid_BA),
  }


def paced(value_BAT: Array, weight_BAT: Array, alpha: float) -> Array:
  """float32[B, A, T]: D-PACE's weights from -log q, see `Block`."""
  valid_BAT = weight_BAT > 0
  q_BAT = lax.stop_gradient(jnp.exp(-jnp.where(valid_BAT, value_BAT, 0.0)))
  step_BAT = jnp.where(valid_BAT, (1 - alpha) * q_BAT + alpha, 1.0)
  reach_BAT = jnp.cumprod(step_BAT, axis=-1) * valid_BAT
  ahead_BAT = lax.cumsum(reach_BAT, axis=2, reverse=True)
  return jnp.where(valid_BAT, ahead_BAT, 0.0)
