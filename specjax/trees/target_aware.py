"""The prefixes a learned scorer expects the target to reach."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import tree_ops
from specjax.checks import check_whole, number
from specjax.models.names import Tensor
from specjax.trees import scorer
from specjax.trees.pool import Pool, beam, exchange, law, path_sum, select
from specjax.trees.scorer import Bound, Lattice, Nodes, Scorer
from specjax.types import (
  Array,
  Ask,
  Candidates,
  Round,
  TokenTree,
)

# Stands for -inf where a number is read as a feature.
FLOOR = -100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetAware:
  """Nodes by the target's reach probability, as a small model expects it.

  Wang, Huang & Chen, "TAPS: Target-Aware Prefix Tree Selection for
  Diffusion-Drafted Speculative Decoding", arXiv:2606.00487, and the authors'
  code (github.com/wzyyy-lab/TAPS-SP), whose "TAPS-Lite" scorer this is. Per
  round: a beam over the drafter's laws gives a pool; the scorer gives each edge
  of it a probability given the parent token; products of those are the reach;
  the nodes of largest reach per cost are verified. That set is closed towards
  the root by itself, since the ratio never rises along a path; with lam2 = 0 it
  maximises the accepted length expected under the scorer.

  Coupled drafts (`Round.sharpness_P`) are this project's own: the scorer was
  trained on plain laws. The pool is grown by coupled scores, the scorer reads
  plain ones, and each of its logits is then shifted by what the coupling did to
  the drafter's log-probability of that event: coupled - plain for an edge, the
  same of what the pool's children leave over for `other`. So the correction for
  the parent is kept while the marginal is exchanged. Where nothing is coupled,
  the shifts are zero.

  Args:
    nodes: rows the target verifies, root included; the authors' N is nodes - 1.
    depth: longest prefix; a scorer is trained for one.
    shared_rows: of the drafter, which must have one law per depth.
    pool: prefixes kept per length.
    fanout: candidates read per depth.
    lam1: cost of a node.
    lam2: what a node costs more per depth.
    tau: reach per cost below which a node is not verified; the released runs
      use 0, which always fills the tree. Others leave padding.
  """

  nodes: int
  depth: int
  shared_rows: bool
  pool: int = 48
  fanout: int = 64
  lam1: float = 1.0
  lam2: float = 0.002
  tau: float = 0.0

  def __post_init__(self):
    if not self.shared_rows:
      raise ValueError(
        'the drafter has laws that depend on the path; TAPS scores the laws of '
        'a block: choose a DFlash drafter.'
      )
    check_whole(2, nodes=self.nodes)
    check_whole(1, depth=self.depth, pool=self.pool, fanout=self.fanout)
    room = self.pool * self.depth + 1
    if self.nodes > room:
      raise ValueError(
        f'nodes is {self.nodes}, and a pool of {self.pool} prefixes for each '
        f'of {self.depth} lengths gives {room} at most; ask for fewer, or '
        'for a larger pool.'
      )
    costs = self.lam1, self.lam2, self.tau
    if not all(map(number, costs)) or min(costs) < 0 or self.lam1 == 0:
      raise ValueError(
        f'lam1 is {self.lam1!r}, lam2 {self.lam2!r} and tau {self.tau!r}; a '
        'node costs more than 0, not less when it is deeper, and tau is at '
        'least 0.'
      )

  @property
  def ask(self) -> Ask:
    return Ask(depth=self.depth, fanout=self.fanout, features=True)

  def init(self, key: Array, target_config) -> Scorer:
    return scorer.init(key, target_config.width)

  def tensors(self) -> list[Tensor]:
    return scorer.tensors()

  def bind(self, params: Scorer, target) -> Bound:
    return scorer.bind(params, target.embed_VD)

  def grow(
    self, params: Bound, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; `params` are bound."""
    draft, scratch = read_laws(expand, root, scratch, self.depth)
    lattice = lattice_of(draft)
    root_B = tree_ops.root_token(round.context)
    pool = beam(lattice.score_BTC, self.pool)
    nodes = nodes_of(lattice, pool)
    logp_BTW, _ = judge(params, lattice, nodes, pool, root_B)
    tree = select(
      path_sum(logp_BTW, pool.parent_BTW),
      nodes.token_BTW,
      pool.parent_BTW,
      root_B,
      nodes=self.nodes,
      lam1=self.lam1,
      lam2=self.lam2,
      tau=self.tau,
    )
    return tree, scratch


def read_laws(
  expand, root: Candidates, scratch, depth: int
) -> tuple[Candidates, object]:
  """Every depth's law with its features, row d that of depth d + 1."""
  laws, scratch = tree_ops.laws(expand, root, scratch, depth)
  if any(law.features is None for law in laws):
    raise ValueError(
      'the drafter gives no features for a learned tree; choose one that '
      'does, such as DFlash.'
    )
  rows = [jax.tree.map(lambda x: x[:, 0], law) for law in laws]
  return jax.tree.map(lambda *x: jnp.stack(x, axis=1), *rows), scratch


def lattice_of(draft: Candidates) -> Lattice:
  """What the pool and the scorer read of `read_laws`."""
  return Lattice(
    token_BTC=draft.token_BWC,
    # Rounding must not lift a child above its parent.
    score_BTC=jnp.minimum(draft.logq_BWC, 0),
    plain_BTC=jnp.clip(draft.features.logq_BWC, FLOOR, 0),
    hidden_BTD=draft.features.hidden_BWD,
    entropy_BT=draft.features.entropy_BW,
  )


def nodes_of(lattice: Lattice, pool: Pool) -> Nodes:
  """The pool's nodes with their plain log-probabilities."""
  plain_BTW = _ranked(lattice.plain_BTC, pool)
  return Nodes(
    token_BTW=_ranked(lattice.token_BTC, pool),
    parent_BTW=pool.parent_BTW,
    step_BTW=plain_BTW,
    total_BTW=path_sum(plain_BTW, pool.parent_BTW),
  )


def judge(
  params: Bound, lattice: Lattice, nodes: Nodes, pool: Pool, root_B: Array
) -> tuple[Array, Array]:
  """The scorer's laws, with coupled marginals in the place of plain ones.

  Serving and training both call this one.

  Returns:
    float32 log P(node | parent) [B, T, W], -inf for dead nodes, and the log of
    what each parent's nodes leave to other tokens [B, T, U].
  """
  edge_BTW, other_BTW = scorer.logits(params, lattice, nodes, root_B)
  edge_BTW, other_BTW = exchange(
    edge_BTW,
    other_BTW,
    nodes.step_BTW,
    _ranked(lattice.score_BTC, pool),
    pool,
  )
  return law(edge_BTW, other_BTW, pool)


def _ranked(x_BTC: Array, pool: Pool) -> Array:
  """[B, T, W]: of each node's candidate."""
  return jnp.take_along_axis(x_BTC, pool.rank_BTW, axis=2)
