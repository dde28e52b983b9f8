"""TAPS's scorer: the target's law of a child behind its parent."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import xlogy

from specjax.training.batch import Fixed, Metrics, share
from specjax.training.traces import Rounds
from specjax.trees import scorer
from specjax.trees.pool import path_sum, rest
from specjax.trees.scorer import Scorer
from specjax.trees.target_aware import judge, nodes_of
from specjax.types import Array

LEAST = 1e-6  # reach is clamped to [LEAST, 1 - LEAST] where it is compared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taps:
  """Divergence of the target's laws from the scorer's, and that of reach.

  Wang, Huang & Chen, "TAPS: Target-Aware Prefix Tree Selection for
  Diffusion-Drafted Speculative Decoding", arXiv:2606.00487, as the authors'
  code trains (github.com/wzyyy-lab/TAPS-SP):

    KL   = mean over nodes u of sum_v pi(v|u) log(pi / q) + the same of `other`
    BCE  = mean over nodes v of BCE(q_reach, pi_reach), both clamped
    loss = KL + reach * BCE

  v runs over u's children in the pool, `other` is every other token, and reach
  is the product along the path. Nodes u are those that were verified, the root
  and the leaves included, whose term is 0; nodes v are those behind them. The
  scorer's laws are computed by what serving calls, `target_aware.judge`.

  The parameters are a `Scorer`, and so are float32: give `step.update` that
  dtype. `token_JD` is learned through the table that `scorer.bind` makes. The
  released script projects the hidden states once, before training, so that its
  `hidden_JD` stays random; here it is learned unless `frozen` names it.

  A batch is `Rounds`; rounds that were padded in have nothing seen. Tokens are
  the target's own, so `Fixed.id_V` is not read: a drafter with fewer has put
  fewer into the candidates.

  Args:
    frozen: fields of `Scorer` that stay; `('hidden_JD',)` is as released.
    reach: weight of BCE.
  """

  frozen: tuple[str, ...] = ()
  reach: float = 0.5

  def mass(self, fixed: Fixed, batch: Rounds, key: Any) -> Array:
    """[2]: nodes u and nodes v."""
    del fixed, key
    count = lambda mask: jnp.sum(mask, dtype=jnp.float32)
    return jnp.stack([count(batch.seen_BPW), count(labelled(batch))])

  def loss(
    self, params: Scorer, fixed: Fixed, batch: Rounds, key: Any, mass_K: Array
  ) -> tuple[Array, Metrics]:
    del key
    logq_BTW, left_BTU = scored(params, fixed, batch)
    kl = divergence(batch, logq_BTW, left_BTU)
    bce = reach_loss(batch, logq_BTW)
    loss = kl[0] / mass_K[0] + self.reach * bce[0] / mass_K[1]
    return loss, {'kl': kl, 'bce': bce}


def scored(params: Scorer, fixed: Fixed, rounds: Rounds) -> tuple[Array, Array]:
  """(log q(v | u) [B, T, W], log q(other | u) [B, T, U]) of the scorer."""
  lattice, pool = rounds.lattice, rounds.pool
  bound = scorer.bind(params, fixed.target.embed_VD)
  nodes = nodes_of(lattice, pool)
  return judge(bound, lattice, nodes, pool, rounds.root_B)


def marginal(rounds: Rounds) -> tuple[Array, Array]:
  """`scored` of the drafter's own laws, which know no parent: the baseline."""
  step_BTW = nodes_of(rounds.lattice, rounds.pool).step_BTW
  return step_BTW, rest(step_BTW, rounds.pool)


def labelled(rounds: Rounds) -> Array:
  """bool[B, T, W]: live nodes behind verified ones."""
  pool = rounds.pool
  up_BTW = jnp.take_along_axis(rounds.seen_BPW[:, :-1], pool.parent_BTW, axis=2)
  return up_BTW & (pool.score_BTW > -jnp.inf)


def divergence(rounds: Rounds, logq_BTW: Array, left_BTU: Array) -> Array:
  """float32[2]: KL(pi || q) summed over verified nodes, and their number."""
  seen_BPW, known_BTW = rounds.seen_BPW, labelled(rounds)
  pi_BTW = jnp.where(known_BTW, rounds.pi_BTW, 0)
  edge_BTW = xlogy(pi_BTW, pi_BTW) - pi_BTW * jnp.where(known_BTW, logq_BTW, 0)
  # A node without children leaves all to others, in both laws.
  pi_BTU = jnp.where(seen_BPW[:, :-1], rounds.rest_BTU, 0)
  other_BTU = xlogy(pi_BTU, pi_BTU) - pi_BTU * left_BTU
  total = jnp.sum(edge_BTW) + jnp.sum(other_BTU)
  return jnp.stack([total, jnp.sum(seen_BPW, dtype=jnp.float32)])


def reach_loss(rounds: Rounds, logq_BTW: Array) -> Array:
  """float32[2]: BCE of reach summed over labelled nodes, and their number."""
  known_BTW = labelled(rounds)
  p_BTW, q_BTW = (
    jnp.clip(x_BTW, LEAST, 1 - LEAST)
    for x_BTW in (target_reach(rounds), reach_of(rounds, logq_BTW))
  )
  bce_BTW = -p_BTW * jnp.log(q_BTW) - (1 - p_BTW) * jnp.log1p(-q_BTW)
  return share(bce_BTW, known_BTW.astype(jnp.float32))


def reach_of(rounds: Rounds, logq_BTW: Array) -> Array:
  """float32[B, T, W]: products of q along the paths of labelled nodes."""
  known_BTW = labelled(rounds)
  logq_BTW = path_sum(jnp.where(known_BTW, logq_BTW, 0), rounds.pool.parent_BTW)
  return jnp.where(known_BTW, jnp.exp(logq_BTW), 0)


def target_reach(rounds: Rounds) -> Array:
  """float32[B, T, W]: the same of pi; 0 where it is not known."""
  return reach_of(rounds, jnp.log(rounds.pi_BTW))
