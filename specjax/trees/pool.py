"""A beam over one law per depth, and trees cut from it.

T counts lengths of prefixes, row 0 being 1; W is the width of the beam, and U
the same as an axis of parents.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax import tree_ops
from specjax.ops import top_k
from specjax.types import Array, TokenTree, struct

# Probability that candidates leave to all other tokens, at least.
REST = 1e-6


@struct
class Pool:
  """The best prefixes of every length, best first, -inf padded."""

  score_BTW: Array  # float32, summed along the path
  parent_BTW: Array  # int32, index one length down
  rank_BTW: Array  # int32, among the candidates of its depth


def beam(score_BTC: Array, width: int) -> Pool:
  """The `width` best prefixes of each length, by sums of log-probabilities."""
  b, _, fanout = score_BTC.shape
  start_BW = jnp.full((b, width), -jnp.inf).at[:, 0].set(0.0)

  def longer(total_BW, score_BC):
    score_BA = (total_BW[:, :, None] + score_BC[:, None]).reshape(b, -1)
    best_BW, pick_BW = top_k(score_BA, width)
    pick_BW = pick_BW.astype(jnp.int32)
    return best_BW, (best_BW, pick_BW // fanout, pick_BW % fanout)

  _, rows = lax.scan(longer, start_BW, score_BTC.swapaxes(0, 1))
  return Pool(*(x_TBW.swapaxes(0, 1) for x_TBW in rows))


def path_sum(x_BTW: Array, parent_BTW: Array) -> Array:
  """Sums from the root down to every node, its own value included."""

  def longer(total_BW, row):
    x_BW, parent_BW = row
    total_BW = x_BW + jnp.take_along_axis(total_BW, parent_BW, axis=1)
    return total_BW, total_BW

  rows = x_BTW.swapaxes(0, 1), parent_BTW.swapaxes(0, 1)
  zero_BW = jnp.zeros_like(x_BTW[:, 0])
  return lax.scan(longer, zero_BW, rows)[1].swapaxes(0, 1)


def exchange(
  edge_BTW: Array,
  other_BTW: Array,
  plain_BTW: Array,
  score_BTW: Array,
  pool: Pool,
) -> tuple[Array, Array]:
  """The scorer's logits with one marginal exchanged for another.

  Args:
    edge_BTW: of every node, see `scorer.logits`.
    other_BTW: of its parents' other tokens.
    plain_BTW: log-probability of the node's token, as the scorer read it.
    score_BTW: the one that the pool was grown by.
    pool: nodes without a score get -inf.
  """
  live_BTW = pool.score_BTW > -jnp.inf
  shifted_BTW = edge_BTW + (score_BTW - plain_BTW)
  return (
    jnp.where(live_BTW, shifted_BTW, -jnp.inf),
    other_BTW + (rest(score_BTW, pool) - rest(plain_BTW, pool)),
  )


def rest(logp_BTW: Array, pool: Pool) -> Array:
  """[B, T, U]: log of what a parent's children leave to all other tokens."""
  child_BTUW = children(pool)
  p_BTUW = jnp.where(child_BTUW, jnp.exp(logp_BTW)[:, :, None], 0)
  return jnp.log(jnp.maximum(1 - jnp.sum(p_BTUW, axis=-1), REST))


def children(pool: Pool) -> Array:
  """bool[B, T, U, W]: is live node w of a length a child of u, one below?"""
  parent_BT1W = pool.parent_BTW[:, :, None]
  at_U1 = jnp.arange(parent_BT1W.shape[-1])[:, None]
  return (parent_BT1W == at_U1) & (pool.score_BTW > -jnp.inf)[:, :, None]


def conditional(edge_BTW: Array, other_BTW: Array, pool: Pool) -> Array:
  """log P(node | parent): softmax over siblings in the pool and `other`."""
  return law(edge_BTW, other_BTW, pool)[0]


def law(edge_BTW: Array, other_BTW: Array, pool: Pool) -> tuple[Array, Array]:
  """(`conditional`, log P(other | parent) [B, T, U])."""
  child_BTUW = children(pool)
  sibling_BTUW = jnp.where(child_BTUW, edge_BTW[:, :, None], -jnp.inf)
  every_BTUA = jnp.concatenate([sibling_BTUW, other_BTW[..., None]], axis=-1)
  norm_BTU = jax.nn.logsumexp(every_BTUA, axis=-1)
  logp_BTW = edge_BTW - jnp.take_along_axis(norm_BTU, pool.parent_BTW, axis=2)
  # Rounding; closure rests on it.
  return jnp.minimum(logp_BTW, 0), jnp.minimum(other_BTW - norm_BTU, 0)


def select(
  reach_BTW: Array,
  token_BTW: Array,
  parent_BTW: Array,
  root_B: Array,
  *,
  nodes: int,
  lam1: float = 1.0,
  lam2: float = 0.0,
  tau: float = 0.0,
) -> TokenTree:
  """The nodes of largest reach / (lam1 + lam2 * depth), as a tree.

  Best first; equal ones by length, so that parents stand before children. The
  first n rows are the tree of n nodes.

  Args:
    reach_BTW: float32 log-probabilities that never rise along a path.
    token_BTW: int32.
    parent_BTW: int32, index one length down.
    root_B: the last committed token.
    nodes: of the result, root included; padded where there are not so many.
    lam1: above 0.
    lam2: at least 0.
    tau: smallest ratio that is kept.
  """
  b, t, w = reach_BTW.shape
  cost_T = lam1 + lam2 * jnp.arange(1, t + 1, dtype=jnp.float32)
  utility_BA = (reach_BTW - jnp.log(cost_T)[:, None]).reshape(b, -1)
  budget = min(nodes - 1, t * w)
  utility_BN, pick_BN = top_k(utility_BA, budget)
  least = math.log(tau) if tau > 0 else -math.inf
  valid_BN = (utility_BN > -jnp.inf) & (utility_BN >= least)
  missing = ((0, 0), (0, nodes - 1 - budget))
  depth_A = np.repeat(np.arange(1, t + 1), w)
  flat = lambda x_BTW: x_BTW.reshape(b, -1)
  return tree_ops.picked(
    root_B,
    flat(token_BTW),
    flat(parent_BTW) + (depth_A - 2) * w,  # below 0 for the shortest
    depth_A,
    flat(reach_BTW),
    jnp.pad(pick_BN, missing),
    jnp.pad(valid_BN, missing),
    max_depth=t,
  )
