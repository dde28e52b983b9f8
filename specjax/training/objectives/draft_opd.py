"""Draft-OPD: a block drafter learns from the rounds that it has drafted."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from specjax.checks import number
from specjax.drafters.dflash import DFlash, Weights
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.training import chunked
from specjax.training.batch import Fixed, Metrics, limited, row_of, share
from specjax.training.blocks import block_hidden
from specjax.training.replay import Replay
from specjax.training.teacher import Teacher, read, read_texts
from specjax.tree_ops import take_rows
from specjax.types import Array, Head

FORMS = ('sampled', 'full')
GUARD = 20.0  # of exp(t - s), which may not overflow
LOT = 16  # rounds of every row that the target judges together


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftOpd:
  """What verification kept is imitated, what it rejected is made less likely.

  Lei, Li et al., "Draft-OPD", arXiv:2605.29343. p is the target behind the
  drafts before a slot, wrong ones included; q the drafter from the round's
  anchor; k the slot, 1 behind the anchor. A slot that was rejected weighs
  w = gamma^(k-1).

  form='sampled' is the authors' code: one token's log-probabilities a slot, t
  of p and s of q,

    committed tokens  f = e^t (t - s) + (1 - e^t) (log(1 - e^t) - log(1 - e^s))
    rejected drafts   g = e^(t - s) - (t - s) - 1
    loss = (a sum f + b sum w g) / (a N + b sum w),

  the correction behind the kept drafts being a committed token, so that its
  slot has both terms. f is the divergence of two coins. g estimates KL(q || p)
  for draws of q, and the draft is q's best token: a surrogate.

  form='full' is the paper's formula (read in summaries of it, which agree):
  KL(p || q) of drafts that were kept, KL(q || p) of rejected slots, each
  stream over its own divisor, loss = (a A + b R) / (a + b). With a trimmed
  vocabulary p is renormalised over it, as `chunked.divergence` has it.

  A token without a row has weight 0, in the loss and in its divisors.

  Args:
    drafter: whose parameters are learned.
    form: 'sampled' or 'full'.
    gamma: decay over the slots of a block.
    accepted, rejected: a and b.
    clamp: form 'sampled' bounds s and t of f from below by -clamp, and both
      terms by clamp, beyond which they have no gradient: the very worst drafts
      teach nothing. None (our own arm) lifts these bounds.
  """

  drafter: DFlash
  form: str = 'sampled'
  gamma: float = 0.8
  accepted: float = 1.0
  rejected: float = 1.0
  clamp: float | None = 10.0
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    if self.form not in FORMS:
      raise ValueError(
        f'form is {self.form!r}; choose one of {", ".join(FORMS)}.'
      )
    if not number(self.gamma) or not 0 < self.gamma <= 1:
      raise ValueError(f'gamma is {self.gamma!r}; give a number in (0, 1].')
    both = (self.accepted, self.rejected)
    if not all(number(x) and x >= 0 for x in both) or not sum(both):
      raise ValueError(
        f'accepted and rejected are {both}; give two numbers from 0 on, one of '
        'them above 0.'
      )
    if self.clamp is not None and not (number(self.clamp) and self.clamp > 0):
      raise ValueError(
        f'clamp is {self.clamp!r}; give a number above 0, or None.'
      )

  def mass(self, fixed: Fixed, batch: Replay, key: Any) -> Array:
    """The pooled divisor, or that of each stream."""
    del key
    kept_BRK, lost_BRK = self._weights(fixed, batch)
    kept, lost = jnp.sum(kept_BRK), jnp.sum(lost_BRK)
    if self.form == 'full':
      return jnp.stack([kept, lost])
    return (self.accepted * kept + self.rejected * lost)[None]

  def loss(
    self, params: Weights, fixed: Fixed, batch: Replay, key: Any, mass_K: Array
  ) -> tuple[Array, Metrics]:
    del key
    fixed = lax.stop_gradient(fixed)
    terms = self._full if self.form == 'full' else self._sampled
    kept_N, lost_N, best_N = terms(params, fixed, batch)
    weights = self._weights(fixed, batch)
    kept_w_N, lost_w_N = (x.reshape(-1) for x in weights)
    kept = self.accepted * jnp.sum(kept_N * kept_w_N)
    lost = self.rejected * jnp.sum(lost_N * lost_w_N)
    if self.form == 'full':
      loss = kept / mass_K[0] + lost / mass_K[1]
      loss = loss / (self.accepted + self.rejected)
    else:
      loss = (kept + lost) / mass_K[0]
    same_BRK = best_N.reshape(batch.draft_BRK.shape) == batch.draft_BRK
    live_BRK = jnp.broadcast_to(batch.live_BR[..., None], same_BRK.shape)
    return loss, {
      'loss_accepted': share(kept_N, kept_w_N),
      'loss_rejected': share(lost_N, lost_w_N),
      'mean_accepted': share(batch.committed_BR, batch.live_BR),
      # 1 as long as the parameters are those that have drafted.
      'replayed': share(same_BRK, live_BRK),
    }

  def _weights(self, fixed: Fixed, batch: Replay) -> tuple[Array, Array]:
    """float32[B, R, K] of both streams; 0 outside of them."""
    head = Head(fixed.target.head, fixed.id_V)
    has = lambda token: row_of(head, token)[1]
    full = self.form == 'full'
    kept_BRK = batch.accepted_BRK if full else batch.committed_BRK
    kept_BRK &= batch.live_BR[..., None] & has(batch.label_BRK)
    lost_BRK = batch.rejected_BRK & has(batch.draft_BRK)
    decay_K = self.gamma ** jnp.arange(lost_BRK.shape[2], dtype=jnp.float32)
    return kept_BRK.astype(jnp.float32), lost_BRK * decay_K

  def _hidden(self, params, fixed, batch: Replay, teacher: Teacher) -> Array:
    """[N, D]: the drafter's, of every slot that had a draft."""
    _, normed_BRTD = block_hidden(
      self.drafter,
      params,
      fixed.target,
      batch.batch,
      teacher,
      batch.anchor_BR,
      batch.live_BR,
    )
    slots = batch.draft_BRK.shape[2]
    return normed_BRTD[:, :, :slots].reshape(-1, normed_BRTD.shape[-1])

  def _sampled(self, params, fixed, batch: Replay):
    """float32[N] f and g of every slot, int32[N] the drafter's best token."""
    target = fixed.target
    teacher = read(target, batch.batch, self.drafter.taps)
    head = limited(self.drafter.head(params, target), fixed)
    id_NA = jnp.stack([batch.label_BRK, batch.draft_BRK], axis=-1)
    logq_NA, best_N = chunked.log_probs(
      self._hidden(params, fixed, batch, teacher), head, id_NA.reshape(-1, 2)
    )
    kept_w_N, lost_w_N = (x.reshape(-1) for x in self._weights(fixed, batch))
    # A slot without weight may have no log-probability: there they agree.
    only = lambda w_N, *xs: [jnp.where(w_N > 0, x, -1.0) for x in xs]
    spoken_N = _spoken(target, batch, teacher).reshape(-1)
    judged_N = batch.logp_BRK.reshape(-1)
    kept_N = coins(*only(kept_w_N, logq_NA[:, 0], spoken_N), self.clamp)
    lost_N = surrogate(*only(lost_w_N, logq_NA[:, 1], judged_N), self.clamp)
    return kept_N, lost_N, best_N

  def _full(self, params, fixed, batch: Replay):
    """As `_sampled`, of whole distributions."""
    target = fixed.target
    out = read_texts(target, batch.batch, self.drafter.taps)
    teacher = Teacher(taps_BTE=out.taps_BTE, hidden_BTD=out.hidden_BTD)
    judged_BRKD = judge(target, batch, out.rows)
    kl_N, best_N, _ = chunked.directed(
      self._hidden(params, fixed, batch, teacher),
      limited(self.drafter.head(params, target), fixed),
      judged_BRKD.reshape(-1, judged_BRKD.shape[-1]),
      target.head,
      batch.rejected_BRK.reshape(-1),
    )
    return kl_N, kl_N, best_N


def coins(s: Array, t: Array, clamp: float | None = 10.0) -> Array:
  """f of `DraftOpd`: KL of Bernoulli(e^t) and Bernoulli(e^s), float32."""
  low = -jnp.inf if clamp is None else -clamp
  high = jnp.log1p(-jnp.finfo(jnp.float32).eps)
  s, t = jnp.clip(s, low, high), jnp.clip(t, low, high)
  p, other = jnp.exp(t), -jnp.expm1(t)
  f = p * (t - s) + other * (jnp.log(other) - jnp.log(-jnp.expm1(s)))
  return f if clamp is None else jnp.clip(f, -clamp, clamp)


def surrogate(s: Array, t: Array, clamp: float | None = 10.0) -> Array:
  """g of `DraftOpd`, float32; 0 where both agree, never below."""
  gap = jnp.minimum(t - s, GUARD)
  g = jnp.expm1(gap) - gap
  return g if clamp is None else jnp.clip(g, -clamp, clamp)


def judge(
  target: transformer.Weights, replay: Replay, rows: kv.KVCache
) -> Array:
  """[B, R, K, D]: the target's normed states behind the drafts of each round.

  Row k - 1 has read the text up to and including the anchor, and the round's
  own drafts before slot k: what it said in verification. Blocks do not see one
  another.

  Args:
    target: frozen.
    replay: anchors and drafts.
    rows: keys and values of the texts, see `transformer.Output`.
  """
  batch = replay.batch
  b, _, k = replay.draft_BRK.shape
  root_BR1 = take_rows(batch.token_BT, replay.anchor_BR)[..., None]
  token_BRK = jnp.concatenate([root_BR1, replay.draft_BRK[..., :-1]], axis=2)
  start_BR1 = take_rows(batch.position_BT, replay.anchor_BR)[..., None]
  text_BR1 = take_rows(batch.text_BT, replay.anchor_BR)[..., None]
  before_BRT = jnp.arange(batch.text_BT.shape[1]) < replay.anchor_BR[..., None]
  see_BRT = before_BRT & (batch.text_BT[:, None] == text_BR1)

  # c: rounds of a lot; N: the rows of their blocks.
  def some(token_cBK, position_cBK, see_cBT):
    c = token_cBK.shape[0]
    flat = lambda x: x.swapaxes(0, 1).reshape(b, c * k)
    of_N = jnp.arange(c * k) // k
    own_NN = (of_N[:, None] == of_N) & jnp.tril(jnp.ones((c * k, c * k), bool))
    see_BNT = jnp.repeat(see_cBT.swapaxes(0, 1), k, axis=1)
    own_BNN = jnp.broadcast_to(own_NN, (b, *own_NN.shape))
    out = transformer.forward(
      target,
      flat(token_cBK),
      flat(position_cBK),
      kv.empty(target.config, b, 1, target.dtype),
      jnp.zeros(b, jnp.int32),
      jnp.concatenate([see_BNT, own_BNN], axis=2),
      earlier=rows,
    )
    return out.hidden_BTD.reshape(b, c, k, -1).swapaxes(0, 1)

  lead = lambda x: x.swapaxes(0, 1)
  position_BRK = start_BR1 + jnp.arange(k)
  return lead(
    chunked.over_rows(
      some, lead(token_BRK), lead(position_BRK), lead(see_BRT), chunk=LOT
    )
  )


def _spoken(
  target: transformer.Weights, replay: Replay, teacher: Teacher
) -> Array:
  """float32[B, R, K]: log p of the text's own tokens in the slots."""
  batch = replay.batch
  next_BT = jnp.roll(batch.token_BT, -1, axis=1)
  hidden_ND = teacher.hidden_BTD.reshape(next_BT.size, -1)
  logp_NA, _ = chunked.log_probs(
    hidden_ND, Head(target.head), next_BT.reshape(-1, 1)
  )
  # Slot k is spoken by the row before its place.
  slot_K = jnp.arange(replay.draft_BRK.shape[2])
  place_BRK = replay.anchor_BR[..., None] + slot_K
  last = next_BT.shape[1] - 1
  return take_rows(logp_NA.reshape(next_BT.shape), jnp.minimum(place_BRK, last))
