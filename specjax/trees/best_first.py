"""The most probable prefixes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax import tree_ops
from specjax.checks import check_whole
from specjax.ops import top_k
from specjax.types import (
  Array,
  Ask,
  Candidates,
  Frontier,
  Round,
  TokenTree,
  struct,
)


@struct
class Beam:
  """The best prefixes of one length, best first, -inf padded."""

  score_BW: Array
  token_BW: Array  # int32
  parent_BW: Array  # int32, index in the beam one shorter


@dataclasses.dataclass(frozen=True, kw_only=True)
class BestFirst:
  """The nodes - 1 prefixes of largest path probability, as a tree.

  That set is closed towards the root and maximises the accepted length expected
  under the drafter (Ringel & Romano, DDTree, arXiv:2604.12989, propositions 1
  and 2). The papers pop a heap on the host; here whole levels are built on the
  device, which is exact: of a prefix among the best B, the parent is among the
  best B of its own length.

  Equal scores stand in the order of length, then of rank.

  Args:
    nodes: rows the target verifies, root included; the papers' DDTree budget B
      is nodes - 1, TreeFlash's tree size is nodes.
    depth: longest prefix; never more than nodes - 1 are of use.
    fanout: children considered per node; a rank beyond nodes - 1 cannot enter.
    shared_rows: the drafter's laws depend on the depth alone, which lets the
      i-th prefix try no more than B / i tokens.
  """

  nodes: int
  depth: int
  fanout: int
  shared_rows: bool

  def __post_init__(self):
    check_whole(1, nodes=self.nodes, fanout=self.fanout)
    check_whole(0, depth=self.depth)

  @property
  def max_depth(self) -> int:
    return min(self.depth, self.nodes - 1)

  @property
  def ask(self) -> Ask:
    budget = max(self.nodes - 1, 1)
    return Ask(
      depth=self.max_depth,
      width=1 if self.shared_rows else budget,
      fanout=min(self.fanout, budget),
    )

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; learns nothing, so `params` is not read."""
    del params
    root_B1 = tree_ops.root_token(round.context)[:, None]
    if self.max_depth == 0:
      none_B0 = jnp.zeros((root_B1.shape[0], 0), jnp.int32)
      return tree_ops.chain(root_B1[:, 0], none_B0, none_B0), scratch
    start = Beam(
      score_BW=jnp.zeros(root_B1.shape),
      token_BW=root_B1,
      parent_BW=jnp.zeros_like(root_B1),
    )
    beams = [self._longer(start, root)]
    for depth in range(1, self.max_depth):
      token_BW = beams[-1].token_BW
      if self.shared_rows:
        token_BW = token_BW[:, :1]  # one row answers for all
      frontier = Frontier(
        token_BW=token_BW,
        # The candidates that proposed these tokens came from their parents.
        row_BW=_rows(beams, self.shared_rows),
        depth=depth,
      )
      candidates, scratch = expand(scratch, frontier)
      beams.append(self._longer(beams[-1], candidates))
    return self._best(root_B1[:, 0], beams), scratch

  def _longer(self, beam: Beam, candidates: Candidates) -> Beam:
    """The best prefixes that are one token longer."""
    budget = self.nodes - 1
    b, width = beam.score_BW.shape
    shape = (b, width, candidates.logq_BWC.shape[-1])
    # Rounding must not lift a child above its parent.
    logq_BWC = jnp.minimum(candidates.logq_BWC.astype(jnp.float32), 0)
    logq_BWC = jnp.broadcast_to(logq_BWC, shape)
    token_BWC = jnp.broadcast_to(candidates.token_BWC, shape)
    i_A, k_A = pairs(width, shape[-1], budget, self.shared_rows)
    score_BA = beam.score_BW[:, i_A] + logq_BWC[:, i_A, k_A]
    score_BW, pick_BW = top_k(score_BA, min(budget, len(i_A)))
    # One width for all lengths, so that an expensive drafter has one shape.
    missing = budget - score_BW.shape[1]
    pad = lambda x_BW, value: jnp.pad(
      x_BW, ((0, 0), (0, missing)), constant_values=value
    )
    token_BA = token_BWC[:, i_A, k_A]
    return Beam(
      score_BW=pad(score_BW, -jnp.inf),
      token_BW=pad(jnp.take_along_axis(token_BA, pick_BW, axis=1), 0),
      parent_BW=pad(jnp.asarray(i_A)[pick_BW], 0),
    )

  def _best(self, root_B: Array, beams: list[Beam]) -> TokenTree:
    """The best of all lengths; shorter first where equal, parents first."""
    budget = self.nodes - 1
    flat = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), *beams)
    score_BW, pick_BW = top_k(flat.score_BW, budget)
    depth_A = np.repeat(np.arange(1, len(beams) + 1), budget)
    return tree_ops.picked(
      root_B,
      flat.token_BW,
      flat.parent_BW + (depth_A - 2) * budget,  # below 0 for the shortest
      depth_A,
      flat.score_BW,
      pick_BW,
      score_BW > -jnp.inf,
      max_depth=self.max_depth,
    )


def pairs(
  width: int, fanout: int, budget: int, shared_rows: bool
) -> tuple[np.ndarray, np.ndarray]:
  """(prefix, rank) pairs that can be among the best `budget`, in that order.

  The i-th prefix with its k-th token (from 1) stands behind its own k - 1
  better siblings and behind the i prefixes it is longer than: i + k <= B + 1.
  With one law per depth it stands behind all i * k pairs of better prefixes and
  better tokens too, hence i * k <= B; where laws differ by prefix that would
  lose nodes.
  """
  i_A, k_A = np.divmod(np.arange(width * fanout), fanout)
  if shared_rows:
    possible_A = (i_A + 1) * (k_A + 1) <= budget
  else:
    possible_A = i_A + k_A + 2 <= budget + 1
  return i_A[possible_A], k_A[possible_A]


def _rows(beams: list[Beam], shared_rows: bool) -> Array:
  """Row of the previous call's candidates that each token came from."""
  row_BW = beams[-1].parent_BW
  return jnp.zeros_like(row_BW[:, :1]) if shared_rows else row_BW
