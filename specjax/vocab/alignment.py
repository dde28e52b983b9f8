"""Online alignment: the drafter learns from what verification has shown.

After EvoSpec (Zhang et al., arXiv:2605.27390), which trains low-rank adapters
in the order of a curriculum. Its loss, schedule and curriculum are not known to
us; these are our own choice. All functions are pure: an experiment calls
`align_step` between chunks of rounds and drafts with the adapted weights after
it. No text depends on them, only what is accepted.

Letters: N positions of the ring or of a batch, A tokens of a position that the
target rates highest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from specjax.types import Array, struct

# (adapters, example, id_NA) -> float32[N, A]: the drafter's log-probabilities
# of these ids over the active set; -inf for an id outside it.
Draft = Callable[[Any, Any, Array], Array]


@struct
class Ring:
  """The latest positions that the target has judged."""

  example: Any  # what the drafter reads there, leading axis N
  id_NA: Array  # int32, the target's best tokens
  p_NA: Array  # float32, their probabilities; 0 outside the active set
  difficulty_N: Array  # float32, see `difficulty`
  count: Array  # int32, positions written so far


@struct
class Aligner:
  """Adapters, their optimiser, and what the guard compares."""

  adapters: Any
  moments: Any
  step: Array  # int32, updates so far
  rate: Array  # float32, learning rate
  seen: Array  # int32, rounds so far
  reverts: Array  # int32, updates undone
  ema: Array  # float32, share of drafts accepted; -1 before the first round
  best: Array  # float32, the largest ema yet
  snapshot: Any  # adapters to go back to
  mark: Array  # float32, ema when the snapshot was taken
  since: Array  # int32, rounds since then


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Defaults are those of a decoupled drafter; EAGLE-3 takes rate 1e-4."""

  rate: float = 2e-5
  batch: int = 256
  warm_up: int = 5  # updates
  decay: float = 0.01  # of the adapters, towards 0
  clip: float = 1.0
  competence: float = 0.3  # at the start
  steps: int = 50  # until it is 1
  heat: float = 0.05  # of the curriculum; inf weighs all alike
  smooth: float = 0.99  # of the acceptance, per round
  slack: float = 0.02  # no update while acceptance is this near its best
  first: int = 10  # updates that are made all the same
  drop: float = 0.05  # of the acceptance, which undoes an update
  watch: int = 64  # rounds until a snapshot is renewed


def empty_ring(example: Any, size: int, best: int) -> Ring:
  """`example` gives shapes, with any leading axis."""
  blank = lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype)
  return Ring(
    example=jax.tree.map(blank, example),
    id_NA=jnp.zeros((size, best), jnp.int32),
    p_NA=jnp.zeros((size, best)),
    difficulty_N=jnp.zeros(size),
    count=jnp.int32(0),
  )


def push(
  ring: Ring, example: Any, id_NA, p_NA, difficulty_N, valid_N: Array
) -> Ring:
  """Writes the valid positions over the oldest; at most as many as it holds."""
  size = ring.difficulty_N.shape[0]
  slot_N = (ring.count + jnp.cumsum(valid_N) - 1) % size
  slot_N = jnp.where(valid_N, slot_N, size)
  put = lambda x, y: x.at[slot_N].set(y, mode='drop')
  return Ring(
    example=jax.tree.map(put, ring.example, example),
    id_NA=put(ring.id_NA, id_NA),
    p_NA=put(ring.p_NA, p_NA),
    difficulty_N=put(ring.difficulty_N, difficulty_N),
    count=ring.count + jnp.sum(valid_N, dtype=jnp.int32),
  )


def difficulty(p_NA: Array, logq_NA: Array) -> Array:
  """float32[N]: 1 - sum min(p, q), the chance that a draft is refused.

  p is renormalised over the active set; 1 where none of it is in there.
  """
  mass_N1 = jnp.sum(p_NA, axis=1, keepdims=True)
  share_NA = p_NA / jnp.where(mass_N1 > 0, mass_N1, 1)
  return 1 - jnp.sum(jnp.minimum(share_NA, jnp.exp(logq_NA)), axis=1)


def competence(step: Array, start: float, steps: int) -> Array:
  """Share of the difficulties that are trained on, rising to 1.

  Platanios et al., "Competence-based Curriculum Learning for Neural Machine
  Translation", arXiv:1903.09848, its square-root schedule.
  """
  squared = step * (1 - start**2) / steps + start**2
  return jnp.minimum(1.0, jnp.sqrt(squared))


def curriculum(difficulty_N: Array, limit: Array, heat: float) -> Array:
  """float32[N]: near 1 below the limit, near 0 above."""
  return jax.nn.sigmoid((limit - difficulty_N) / heat)


def loss(
  draft: Draft, adapters, example, id_NA, p_NA, weight_N: Array
) -> Array:
  """Weighted mean of p(A) KL(p over A || q over A).

  The factor p(A) keeps positions quiet whose mass is outside the active set:
  there the drafter would be pushed towards what the target does not want.
  """
  logq_NA = draft(adapters, example, id_NA)
  inside_NA = p_NA > 0
  mass_N = jnp.sum(p_NA, axis=1)
  share_NA = p_NA / jnp.where(mass_N > 0, mass_N, 1)[:, None]
  logp_NA = jnp.log(jnp.where(inside_NA, share_NA, 1))
  gap_NA = jnp.where(inside_NA, logp_NA - jnp.where(inside_NA, logq_NA, 0), 0)
  kl_N = jnp.sum(share_NA * gap_NA, axis=1)
  total = jnp.sum(weight_N * mass_N * kl_N)
  return total / jnp.maximum(jnp.sum(weight_N), 1e-6)


def begin(settings: Settings, adapters: Any) -> Aligner:
  """Before the first round."""
  return Aligner(
    adapters=adapters,
    moments=_optimiser(settings).init(adapters),
    step=jnp.int32(0),
    rate=jnp.float32(settings.rate),
    seen=jnp.int32(0),
    reverts=jnp.int32(0),
    ema=jnp.float32(-1),
    best=jnp.float32(-1),
    snapshot=adapters,
    mark=jnp.float32(-1),
    since=jnp.int32(0),
  )


def note(settings: Settings, aligner: Aligner, rate_R: Array) -> Aligner:
  """Takes in the share of drafts that each round of a chunk accepted.

  nan stands for a round that was not. Goes back to the snapshot, at half the
  learning rate, where the average has fallen too far since.
  """

  def fold(carry, rate):
    seen, ema = carry
    # A plain mean until there are rounds enough: an average that began with
    # the first round's share would hold for drift what is its own settling.
    share = jnp.maximum(1 / (seen + 1), 1 - settings.smooth)
    moved = ema + share * (rate - ema)
    there = ~jnp.isnan(rate)
    return (seen + there, jnp.where(there, moved, ema)), None

  (seen, ema), _ = jax.lax.scan(
    fold, (aligner.seen, aligner.ema), rate_R.astype(jnp.float32)
  )
  worse = (aligner.mark >= 0) & (ema < aligner.mark - settings.drop)
  back = lambda old, new: jnp.where(worse, old, new)
  fresh = _optimiser(settings).init(aligner.adapters)
  return aligner.replace(
    adapters=jax.tree.map(back, aligner.snapshot, aligner.adapters),
    moments=jax.tree.map(back, fresh, aligner.moments),
    rate=back(aligner.rate / 2, aligner.rate),
    seen=seen,
    reverts=aligner.reverts + worse,
    ema=ema,
    best=jnp.maximum(aligner.best, ema),
    mark=back(ema, aligner.mark),
    since=aligner.since + seen - aligner.seen,
  )


def wanted(settings: Settings, aligner: Aligner, ring: Ring) -> Array:
  """bool[]: is there something to learn, and from what?"""
  drifts = aligner.ema < aligner.best - settings.slack
  return (ring.count > 0) & (drifts | (aligner.step < settings.first))


def align_step(
  settings: Settings, draft: Draft, aligner: Aligner, ring: Ring, key: Array
) -> tuple[Aligner, Array]:
  """One update from a batch of the ring, where one is wanted.

  `settings` and `draft` are static for jit.

  Returns:
    The aligner, and the batch's loss before the update (nan without one).
  """

  def update(aligner: Aligner):
    size = ring.difficulty_N.shape[0]
    held = jnp.minimum(ring.count, size)
    at_N = jax.random.randint(key, (settings.batch,), 0, held)
    used_N = jnp.arange(size) < held
    limit = jnp.nanquantile(
      jnp.where(used_N, ring.difficulty_N, jnp.nan),
      competence(aligner.step, settings.competence, settings.steps),
    )
    weight_N = curriculum(ring.difficulty_N[at_N], limit, settings.heat)
    example, id_NA, p_NA = jax.tree.map(
      lambda x: x[at_N], (ring.example, ring.id_NA, ring.p_NA)
    )
    value, gradient = jax.value_and_grad(
      lambda adapters: loss(draft, adapters, example, id_NA, p_NA, weight_N)
    )(aligner.adapters)
    change, moments = _optimiser(settings).update(
      gradient, aligner.moments, aligner.adapters
    )
    warm = jnp.minimum(1.0, (aligner.step + 1) / settings.warm_up)
    adapters = jax.tree.map(
      lambda x, d: x - aligner.rate * warm * d, aligner.adapters, change
    )
    renew = (aligner.mark < 0) | (aligner.since >= settings.watch)
    keep = lambda new, old: jnp.where(renew, new, old)
    return aligner.replace(
      adapters=adapters,
      moments=moments,
      step=aligner.step + 1,
      snapshot=jax.tree.map(keep, aligner.adapters, aligner.snapshot),
      mark=keep(aligner.ema, aligner.mark),
      since=keep(0, aligner.since),
    ), value

  return jax.lax.cond(
    wanted(settings, aligner, ring),
    update,
    lambda aligner: (aligner, jnp.float32(jnp.nan)),
    aligner,
  )


def _optimiser(settings: Settings) -> optax.GradientTransformation:
  """AdamW without its learning rate, which the guard changes."""
  return optax.chain(
    optax.clip_by_global_norm(settings.clip),
    optax.scale_by_adam(b1=0.9, b2=0.99),
    optax.add_decayed_weights(settings.decay),
  )
