"""EAGLE-2's dynamic tree: a beam of fixed width, then the best of all."""

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
class Level:
  """All candidates of one depth; those of one parent stand together."""

  score_BA: Array  # float32, summed from the root; -inf where there is none
  token_BA: Array  # int32
  parent_BA: Array  # int32, place among all candidates; -1 is the root


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beam:
  """Continues the `width` best nodes of each depth, then keeps the best of all.

  Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft
  Trees", arXiv:2406.16858. Every continued node proposes `width` tokens, whose
  scores are summed log-probabilities; the best `width` of them are continued,
  and all are kept as candidates. In the end the nodes - 1 best candidates of
  all depths are the tree.

  Unlike `BestFirst` this is a heuristic: a prefix outside the beam is lost with
  all that would follow, which bounds the drafter's rows per depth.

  Equal scores stand in the order of depth, then of place: so a child, which
  scores no more than its parent, is never kept without it.

  Args:
    nodes: rows the target verifies, root included (the authors' total_token).
    depth: levels below the root (the authors' depth argument plus one).
    width: nodes continued per level, and tokens each of them proposes.
  """

  nodes: int
  depth: int
  width: int

  def __post_init__(self):
    check_whole(1, nodes=self.nodes, width=self.width)
    check_whole(0, depth=self.depth)
    room = 1 + sum(_counts(self.depth, self.width))
    if self.nodes > room:
      raise ValueError(
        f'nodes is {self.nodes}; {self.depth} levels of width {self.width} '
        f'have {room} at most, root included. Ask for fewer, or for more '
        'levels or a greater width.'
      )

  @property
  def max_depth(self) -> int:
    return min(self.depth, self.nodes - 1)  # a deeper node has no room above it

  @property
  def ask(self) -> Ask:
    return Ask(depth=self.max_depth, width=self.width, fanout=self.width)

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; learns nothing, so `params` is not read."""
    del params
    root_B = tree_ops.root_token(round.context)
    b, k = root_B.shape[0], self.width
    if self.max_depth == 0:
      none_B0 = jnp.zeros((b, 0), jnp.int32)
      return tree_ops.chain(root_B, none_B0, none_B0), scratch
    levels = [self._level(root, jnp.zeros((b, 1)), jnp.full((b, 1), -1))]
    # The first level has as many candidates as the beam is wide.
    pick_BW = jnp.broadcast_to(jnp.arange(k), (b, k))
    row_BW, base = jnp.zeros((b, k), jnp.int32), 0
    for depth in range(1, self.max_depth):
      last = levels[-1]
      pick = lambda x_BA, i_BW=pick_BW: jnp.take_along_axis(x_BA, i_BW, axis=1)
      frontier = Frontier(
        token_BW=pick(last.token_BA), row_BW=row_BW, depth=depth
      )
      candidates, scratch = expand(scratch, frontier)
      levels.append(
        self._level(candidates, pick(last.score_BA), base + pick_BW)
      )
      base += last.score_BA.shape[1]
      pick_BW = top_k(levels[-1].score_BA, k)[1]
      row_BW = pick_BW // k
    return self._best(root_B, levels), scratch

  def _level(
    self, candidates: Candidates, score_BW: Array, place_BW: Array
  ) -> Level:
    """The candidates below these nodes, `width` for each."""
    b, w = score_BW.shape
    # Rounding must not lift a child above its parent.
    logq_BWC = jnp.minimum(candidates.logq_BWC.astype(jnp.float32), 0)
    missing = self.width - logq_BWC.shape[-1]  # a small vocabulary
    pad = lambda x_BWC, value: jnp.pad(
      x_BWC, ((0, 0), (0, 0), (0, missing)), constant_values=value
    )
    score_BWC = score_BW[..., None] + pad(logq_BWC, -jnp.inf)
    place_BWC = jnp.broadcast_to(place_BW[..., None], (b, w, self.width))
    return Level(
      score_BA=score_BWC.reshape(b, -1),
      token_BA=pad(candidates.token_BWC, 0).reshape(b, -1),
      parent_BA=place_BWC.reshape(b, -1).astype(jnp.int32),
    )

  def _best(self, root_B: Array, levels: list[Level]) -> TokenTree:
    """The best candidates in their own order, which is breadth first."""
    pool = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=1), *levels)
    depth_A = depths(self.max_depth, self.width)
    size = len(depth_A)
    score_BN, place_BN = top_k(pool.score_BA, self.nodes - 1)
    # What is no candidate goes last.
    place_BN = jnp.sort(jnp.where(score_BN > -jnp.inf, place_BN, size), axis=1)
    return tree_ops.picked(
      root_B,
      pool.token_BA,
      pool.parent_BA,
      depth_A,
      pool.score_BA,
      place_BN,
      place_BN < size,
      max_depth=self.max_depth,
    )


def depths(levels: int, width: int) -> np.ndarray:
  """int32: the depth of every candidate there can be, in order."""
  counts = _counts(levels, width)
  return np.repeat(np.arange(1, levels + 1, dtype=np.int32), counts)


def _counts(levels: int, width: int) -> list[int]:
  """Candidates of each depth, at most."""
  return [width] + [width**2] * (levels - 1) if levels else []
