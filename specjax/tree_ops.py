"""Operations on padded draft trees."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from specjax.types import Array, Context, TokenTree


def root_token(context: Context) -> Array:
  """int32[B]: the last committed token, the root of every tree."""
  return take_rows(context.tokens_BT, context.length_B - 1)


def take_rows(x: Array, index: Array) -> Array:
  """x[b, index[b]] for every b; an index is a scalar or an array per b."""
  return jax.vmap(lambda x, i: x[i])(x, index)


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
