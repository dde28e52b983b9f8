"""Whole families of children below the likeliest prefixes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from specjax import tree_ops
from specjax.checks import check_whole
from specjax.types import (
  Array,
  Ask,
  Candidates,
  Round,
  TokenTree,
  struct,
)


@struct
class Queue:
  """Nodes in the order they were added; A = 1 + expansions * width of them."""

  score_BA: Array  # float32, -inf for "not added"
  open_BA: Array  # bool, still to be expanded
  token_BA: Array  # int32
  parent_BA: Array  # int32
  depth_BA: Array  # int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Families:
  """Takes the likeliest open node and adds all its children, until full.

  The rule `accum_logp` of JetSpec, arXiv:2606.18394, and its code
  (github.com/hao-ai-lab/JetSpec). Unlike `BestFirst`, which adds one prefix at
  a time, the weak siblings of a strong child take rows of the budget too; the
  last family is cut where that ends. Of equal scores the node added first goes
  first.

  The authors pop a heap on the host. Here a node's place is the order of its
  addition, so that an argmax over open nodes is that pop, ties included, and
  (nodes - 1) / width of them, each a few vector operations, make the tree.

  A candidate that is none (-inf) leaves its place in the family empty.

  Args:
    nodes: rows the target verifies, root included, as the authors count.
    depth: longest prefix.
    width: children per family, at most the vocabulary.
    shared_rows: of the drafter, which must have one law per depth.
  """

  nodes: int
  depth: int
  width: int
  shared_rows: bool

  def __post_init__(self):
    if not self.shared_rows:
      raise ValueError(
        'the drafter has laws that depend on the path; families share one law '
        "per depth: choose a DFlash drafter, or the tree 'best_first'."
      )
    check_whole(1, nodes=self.nodes, depth=self.depth, width=self.width)

  @property
  def expansions(self) -> int:
    return -(-(self.nodes - 1) // self.width)

  @property
  def max_depth(self) -> int:
    return min(self.depth, self.expansions)

  @property
  def ask(self) -> Ask:
    return Ask(depth=self.max_depth, fanout=self.width)

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; learns nothing, so `params` is not read."""
    del params
    root_B = tree_ops.root_token(round.context)
    if self.max_depth == 0:
      none_B0 = jnp.zeros((root_B.shape[0], 0), jnp.int32)
      return tree_ops.chain(root_B, none_B0, none_B0), scratch
    laws, scratch = tree_ops.laws(expand, root, scratch, self.max_depth)
    rows = map(self._law, laws)
    table = jax.tree.map(lambda *x: jnp.stack(x, axis=1), *rows)
    queue = lax.fori_loop(
      0,
      self.expansions,
      lambda e, queue: self._pop(queue, table, e),
      self._start(root_B),
    )
    cut = lambda x_BA: x_BA[:, : self.nodes]
    valid_BN = cut(queue.score_BA) > -jnp.inf
    keep = lambda x_BA: jnp.where(valid_BN, cut(x_BA), 0)
    return TokenTree(
      token_BN=keep(queue.token_BA),
      parent_BN=keep(queue.parent_BA),
      depth_BN=keep(queue.depth_BA),
      valid_BN=valid_BN,
      logq_BN=cut(queue.score_BA),
      max_depth=self.max_depth,
    ), scratch

  def _law(self, candidates: Candidates) -> Candidates:
    """Row 0 as [B, width], padded with what is no candidate."""
    token_BC, logq_BC = candidates.token_BWC[:, 0], candidates.logq_BWC[:, 0]
    missing = ((0, 0), (0, self.width - token_BC.shape[1]))
    return Candidates(
      jnp.pad(token_BC, missing),
      # Rounding must not lift a child above its parent.
      jnp.minimum(jnp.pad(logq_BC, missing, constant_values=-jnp.inf), 0),
    )

  def _start(self, root_B: Array) -> Queue:
    """The root alone."""
    zero_BA = jnp.zeros(
      (root_B.shape[0], 1 + self.expansions * self.width), jnp.int32
    )
    return Queue(
      score_BA=jnp.full(zero_BA.shape, -jnp.inf).at[:, 0].set(0.0),
      open_BA=(zero_BA == 0).at[:, 1:].set(False),
      token_BA=zero_BA.at[:, 0].set(root_B),
      parent_BA=zero_BA,
      depth_BA=zero_BA,
    )

  def _pop(self, queue: Queue, table: Candidates, e: Array) -> Queue:
    """The e-th expansion; nothing is added where no node is open."""
    score_BA = jnp.where(queue.open_BA, queue.score_BA, -jnp.inf)
    best_B1 = jnp.argmax(score_BA, axis=1, keepdims=True).astype(jnp.int32)
    at = lambda x_BA: jnp.take_along_axis(x_BA, best_B1, axis=1)
    depth_B1 = at(queue.depth_BA)
    # A node of the last depth is never open, whatever argmax finds among none.
    row_B1 = jnp.minimum(depth_B1, self.max_depth - 1)
    law = jax.tree.map(
      lambda x_BTC: jnp.take_along_axis(x_BTC, row_B1[..., None], axis=1)[:, 0],
      table,
    )
    child_BC = at(score_BA) + law.logq_BWC
    wide = lambda x_B1: jnp.broadcast_to(x_B1, child_BC.shape)
    first = 1 + e * self.width
    put = lambda x_BA, x_BC: lax.dynamic_update_slice_in_dim(
      x_BA, x_BC, first, axis=1
    )
    index_A = jnp.arange(score_BA.shape[1])
    return Queue(
      score_BA=put(queue.score_BA, child_BC),
      open_BA=put(
        queue.open_BA & (index_A != best_B1),
        (child_BC > -jnp.inf) & (depth_B1 + 1 < self.depth),
      ),
      token_BA=put(queue.token_BA, law.token_BWC),
      parent_BA=put(queue.parent_BA, wide(best_B1)),
      depth_BA=put(queue.depth_BA, wide(depth_B1 + 1)),
    )
