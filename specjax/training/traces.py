"""Rounds of the real decode loop with what the target says of a whole pool.

T counts depths of the pool (row 0 is depth 1), W its nodes, U the same as an
axis of parents, P lengths from the root's 0 on, N nodes of the verified tree,
and B rounds once they are stored.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from specjax import tree_ops
from specjax.checks import check_whole
from specjax.method import Method
from specjax.trees.pool import Pool, beam, children, select
from specjax.trees.scorer import Lattice
from specjax.trees.target_aware import (
  TargetAware,
  lattice_of,
  nodes_of,
  read_laws,
)
from specjax.types import (
  Array,
  Ask,
  Candidates,
  Features,
  Round,
  TokenTree,
  Verdict,
  struct,
)


@struct
class Rounds:
  """Rounds as the scorer saw them, and the target's law of each pool node."""

  root_B: Array  # int32, the last committed token
  token_BTC: Array  # int32, the drafter's candidates
  logq_BTC: Array  # float32, plain log-probabilities
  hidden_BTD: Array  # what the drafter's head reads
  entropy_BT: Array  # float32
  score_BTW: Array  # the pool, see `pool.Pool`
  parent_BTW: Array  # int16
  rank_BTW: Array  # int16
  seen_BPW: Array  # bool: was the w-th node of depth p verified? root at [0, 0]
  pi_BTW: Array  # float32, the target's P(node | parent); 0 if unknown
  rest_BTU: Array  # float32, what it leaves to others behind [depth t, node u]

  @property
  def lattice(self) -> Lattice:
    """The very one that serving makes of these laws."""
    hidden_BTD = jnp.asarray(self.hidden_BTD)
    extra = Features(hidden_BTD, self.entropy_BT, self.logq_BTC)
    return lattice_of(Candidates(self.token_BTC, self.logq_BTC, extra))

  @property
  def pool(self) -> Pool:
    whole = lambda x_BTW: jnp.asarray(x_BTW, jnp.int32)
    return Pool(self.score_BTW, whole(self.parent_BTW), whole(self.rank_BTW))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholePool:
  """The pool that `serving` would choose from, or its best part, as a tree.

  Its best nodes are those of largest path probability under the drafter, which
  needs no scorer. Row d of `TokenTree.draft` is the law of depth d + 1, for an
  observer to keep.

  Args:
    serving: of which pool.
    nodes: rows the target verifies, root included.
  """

  serving: TargetAware
  nodes: int

  def __post_init__(self):
    check_whole(2, nodes=self.nodes)
    room = self.serving.pool * self.serving.depth + 1
    if self.nodes > room:
      raise ValueError(
        f'nodes is {self.nodes}, and the pool and its root are {room} rows; '
        'ask for no more.'
      )

  @property
  def ask(self) -> Ask:
    return self.serving.ask

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; learns nothing, so `params` is not read."""
    del params
    draft, scratch = read_laws(expand, root, scratch, self.serving.depth)
    lattice = lattice_of(draft)
    pool = beam(lattice.score_BTC, self.serving.pool)
    tree = select(
      pool.score_BTW,
      nodes_of(lattice, pool).token_BTW,
      pool.parent_BTW,
      tree_ops.root_token(round.context),
      nodes=self.nodes,
    )
    return tree.replace(draft=draft), scratch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watch:
  """Observes a round: static for `decode`, makes `Rounds` of one round.

  Args:
    pool: the serving tree's width.
    hidden: dtype that hidden states are kept in; the authors' is float16.
    heat: temperature of the target's law; the authors' is 1.
  """

  pool: int
  hidden: str = 'float16'
  heat: float = 1.0

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, verdict: Verdict
  ) -> Rounds:
    del verdict
    lattice = lattice_of(tree.draft)
    pool = beam(lattice.score_BTC, self.pool)
    token_BTW = nodes_of(lattice, pool).token_BTW
    node_BPW = places(tree, pool, token_BTW)
    up_BTW = jnp.take_along_axis(node_BPW[:, :-1], pool.parent_BTW, axis=2)
    known_BTW = (up_BTW >= 0) & (pool.score_BTW > -jnp.inf)
    at = jax.vmap(lambda x_NV, n_TW, v_TW: x_NV[n_TW, v_TW])
    logits_BNV = logits_BNV.astype(jnp.float32) / self.heat
    norm_BN1 = jax.nn.logsumexp(logits_BNV, axis=-1, keepdims=True)
    up_BTW = jnp.maximum(up_BTW, 0)
    logp_BTW = at(logits_BNV, up_BTW, token_BTW)
    logp_BTW -= at(norm_BN1, up_BTW, jnp.zeros_like(up_BTW))
    pi_BTW = jnp.where(known_BTW, jnp.exp(jnp.minimum(logp_BTW, 0)), 0)
    mine_BTUW = jnp.where(children(pool), pi_BTW[:, :, None], 0)
    rest_BTU = jnp.maximum(1 - jnp.sum(mine_BTUW, axis=-1), 0)
    short = lambda x_BTW: x_BTW.astype(jnp.int16)
    return Rounds(
      root_B=tree.token_BN[:, 0],
      token_BTC=lattice.token_BTC,
      logq_BTC=tree.draft.logq_BWC,
      hidden_BTD=lattice.hidden_BTD.astype(self.hidden),
      entropy_BT=lattice.entropy_BT,
      score_BTW=pool.score_BTW,
      parent_BTW=short(pool.parent_BTW),
      rank_BTW=short(pool.rank_BTW),
      seen_BPW=node_BPW >= 0,
      pi_BTW=pi_BTW,
      rest_BTU=jnp.where(node_BPW[:, :-1] >= 0, rest_BTU, 0),
    )


def places(tree: TokenTree, pool: Pool, token_BTW: Array) -> Array:
  """int32[B, P, W]: the tree's node for each prefix of the pool, or -1.

  Found by path, whatever rule put the nodes there; the root is at [0, 0].
  """
  b, t, w = token_BTW.shape
  root_BW = jnp.full((b, w), -1, jnp.int32).at[:, 0].set(0)
  mine = lambda x_BN, x_BW: x_BN[:, None] == x_BW[..., None]

  def longer(node_BW, row):
    depth, token_BW, parent_BW, live_BW = row
    up_BW = jnp.take_along_axis(node_BW, parent_BW, axis=1)
    there_BN = tree.valid_BN & (tree.depth_BN == depth)
    hit_BWN = mine(tree.parent_BN, up_BW) & mine(tree.token_BN, token_BW)
    hit_BWN &= there_BN[:, None] & live_BW[..., None]
    found_BW = jnp.argmax(hit_BWN, axis=-1).astype(jnp.int32)
    node_BW = jnp.where(jnp.any(hit_BWN, axis=-1), found_BW, -1)
    return node_BW, node_BW

  by_depth = lambda x_BTW: x_BTW.swapaxes(0, 1)
  rows = (
    jnp.arange(1, t + 1),
    by_depth(token_BTW),
    by_depth(pool.parent_BTW),
    by_depth(pool.score_BTW > -jnp.inf),
  )
  node_TBW = lax.scan(longer, root_BW, rows)[1]
  return jnp.concatenate([root_BW[:, None], by_depth(node_TBW)], axis=1)


def tracing(method: Method, nodes: int) -> Method:
  """A TAPS method that verifies its pool instead, and drafts as if greedy.

  Raises:
    ValueError: another tree, or more nodes than the pool has.
  """
  if not isinstance(method.tree, TargetAware):
    raise ValueError(
      f'the tree of method {method.name!r} has no pool; trace a TAPS method.'
    )
  tree = WholePool(serving=method.tree, nodes=nodes)
  return dataclasses.replace(method, tree=tree, sharpness=None)
