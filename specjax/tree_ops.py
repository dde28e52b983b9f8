"""Operations on padded draft trees."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, Candidates, Context, Frontier, TokenTree


def root_token(context: Context) -> Array:
  """int32[B]: the last committed token, the root of every tree."""
  return take_rows(context.tokens_BT, context.length_B - 1)


def take_rows(x: Array, index: Array) -> Array:
  """x[b, index[b]] for every b; an index is a scalar or an array per b."""
  return jax.vmap(lambda x, i: x[i])(x, index)


def causal(batch: int, rows: int) -> Array:
  """bool[B, T, T]: each row sees itself and what stands before it."""
  see_TT = jnp.tril(jnp.ones((rows, rows), bool))
  return jnp.broadcast_to(see_TT, (batch, rows, rows))


def ancestors(parent_BN: Array) -> Array:
  """bool[B, N, N]: is node j node i itself or above it?

  The root is its own parent, so repeated squaring of the one-step relation
  stops changing after log2(N) rounds; no loop over nodes, no host.
  """
  chex.assert_rank(parent_BN, 2)
  n = parent_BN.shape[-1]
  step_BNN = jax.nn.one_hot(parent_BN, n) + jnp.eye(n)
  for _ in range(n.bit_length()):
    step_BNN = jnp.minimum(jnp.einsum('bij,bjk->bik', step_BNN, step_BNN), 1)
  return step_BNN > 0


def visible(tree: TokenTree) -> Array:
  """bool[B, N, N]: may row i attend to row j in the verification pass?

  A padding node sees itself only: its output is never read, but a row that
  sees nothing would be 0/0.
  """
  n = tree.parent_BN.shape[-1]
  own_NN = jnp.eye(n, dtype=bool)
  return (ancestors(tree.parent_BN) & tree.valid_BN[:, None, :]) | own_NN


def chain(root_B: Array, token_BN: Array, logq_BN: Array, **kw) -> TokenTree:
  """A tree with one child per node; `token` and `logq` exclude the root.

  A candidate that is no candidate (-inf) ends the chain there.
  """
  b, depth = token_BN.shape
  total_BN = jnp.cumsum(logq_BN.astype(jnp.float32), axis=1)
  index_N = jnp.arange(depth + 1, dtype=jnp.int32)
  return TokenTree(
    token_BN=jnp.concatenate([root_B[:, None], token_BN], axis=1),
    parent_BN=jnp.broadcast_to(jnp.maximum(index_N - 1, 0), (b, depth + 1)),
    depth_BN=jnp.broadcast_to(index_N, (b, depth + 1)),
    valid_BN=jnp.concatenate(
      [jnp.ones((b, 1), bool), total_BN > -jnp.inf], axis=1
    ),
    logq_BN=jnp.concatenate([jnp.zeros((b, 1)), total_BN], axis=1),
    max_depth=depth,
    is_chain=True,
    **kw,
  )


def laws(
  expand: Any, root: Candidates, scratch: Any, depth: int
) -> tuple[list[Candidates], Any]:
  """One law per depth 1 .. depth, and the scratch behind them.

  For drafters with `shared_rows`: what token stands before matters to none.
  """
  found = [root]
  for at in range(1, depth):
    token_B1 = found[-1].token_BWC[:, :1, 0]
    frontier = Frontier(
      token_BW=token_B1, row_BW=jnp.zeros_like(token_B1), depth=at
    )
    candidates, scratch = expand(scratch, frontier)
    found.append(candidates)
  return found, scratch


def picked(
  root_B: Array,
  token_BA: Array,
  parent_BA: Array,
  depth_A: np.ndarray,
  score_BA: Array,
  pick_BN: Array,
  valid_BN: Array,
  *,
  max_depth: int,
) -> TokenTree:
  """A tree of some entries of a pool of prefixes.

  Args:
    root_B: int32, the last committed token.
    token_BA: int32, the last token of each prefix.
    parent_BA: int32, the entry one token shorter; below 0 is the root.
    depth_A: int, tokens of each.
    score_BA: float32, summed from the root.
    pick_BN: int32, entries in the order they get as nodes 1, 2, ...; closed
      towards the root, parents first.
    valid_BN: bool; what is not becomes padding, whatever it picks.
    max_depth: of the result.
  """
  size, count = score_BA.shape[1], pick_BN.shape[1]
  slot_BN = jnp.where(valid_BN, pick_BN, size)  # out of range: not written
  pick_BN = jnp.minimum(slot_BN, size - 1)
  node_N = jnp.arange(1, count + 1, dtype=jnp.int32)
  node_of_BA = jax.vmap(
    lambda i_N: jnp.zeros(size, jnp.int32).at[i_N].set(node_N, mode='drop')
  )(slot_BN)
  pick = lambda x_BA: jnp.take_along_axis(x_BA, pick_BN, axis=1)
  above_BN = pick(parent_BA)
  parent_BN = jnp.take_along_axis(node_of_BA, jnp.maximum(above_BN, 0), axis=1)
  parent_BN = jnp.where(above_BN < 0, 0, parent_BN)

  def with_root(root, x_BN, padding=0):
    x_BN = jnp.where(valid_BN, x_BN, padding).astype(root.dtype)
    return jnp.concatenate([root[:, None], x_BN], axis=1)

  none_B = jnp.zeros_like(root_B, jnp.int32)
  return TokenTree(
    token_BN=with_root(root_B.astype(jnp.int32), pick(token_BA)),
    parent_BN=with_root(none_B, parent_BN),
    depth_BN=with_root(none_B, jnp.asarray(depth_A)[pick_BN]),
    valid_BN=with_root(none_B == 0, valid_BN, False),
    logq_BN=with_root(none_B.astype(jnp.float32), pick(score_BA), -jnp.inf),
    max_depth=max_depth,
  )


def first(tree: TokenTree, nodes: int) -> TokenTree:
  """The first rows of a tree, which are one: parents stand before children."""
  cut = lambda x_BN: x_BN[:, :nodes]
  return tree.replace(
    token_BN=cut(tree.token_BN),
    parent_BN=cut(tree.parent_BN),
    depth_BN=cut(tree.depth_BN),
    valid_BN=cut(tree.valid_BN),
    logq_BN=cut(tree.logq_BN),
    draft=None,
    is_chain=False,  # its path may be padded beyond its nodes
  )


def walk(tree: TokenTree, kept_BN: Array) -> tuple[Array, Array, Array]:
  """The kept nodes as a path: (path_BP -1 padded, length_B, end_B).

  `kept_BN` holds the root and is closed towards it; siblings differ, so the
  kept nodes are one per depth.
  """
  depth_P = jnp.arange(tree.path_rows)
  at_BPN = kept_BN[:, None, :] & (tree.depth_BN[:, None, :] == depth_P[:, None])
  length_B = jnp.sum(kept_BN, axis=1, dtype=jnp.int32)
  path_BP = jnp.argmax(at_BPN, axis=-1).astype(jnp.int32)
  end_B = jnp.take_along_axis(path_BP, length_B[:, None] - 1, axis=1)[:, 0]
  path_BP = jnp.where(depth_P < length_B[:, None], path_BP, -1)
  return path_BP, length_B, end_B


def check(tree: TokenTree) -> None:
  """Asserts the invariants of a concrete tree (tests, notebooks).

  Raises:
    AssertionError: names the first invariant that does not hold.
  """
  token, parent, depth, valid, logq = jax.device_get(
    (tree.token_BN, tree.parent_BN, tree.depth_BN, tree.valid_BN, tree.logq_BN)
  )
  for b in range(token.shape[0]):
    assert parent[b, 0] == 0 and depth[b, 0] == 0 and valid[b, 0], 'root'
    seen = set()
    for i in range(1, token.shape[1]):
      if not valid[b, i]:
        continue
      p = parent[b, i]
      assert 0 <= p < i, f'parent {p} of node {i} stands behind it'
      assert valid[b, p], f'parent {p} of node {i} is padding'
      assert depth[b, i] == depth[b, p] + 1, f'depth of node {i}'
      assert depth[b, i] <= tree.max_depth, f'node {i} is too deep'
      assert logq[b, i] <= logq[b, p] + 1e-5, f'score of node {i} rises'
      assert (p, token[b, i]) not in seen, f'node {i} repeats its sibling'
      seen.add((p, token[b, i]))
