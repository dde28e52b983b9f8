"""TAPS: its pool, its conditionals and its choice, against plain loops."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, tree_ops
from specjax.trees import pool as pools
from specjax.trees.best_first import BestFirst
from specjax.trees.pool import beam, conditional, exchange, path_sum, select
from specjax.types import (
  Candidates,
  Context,
  Round,
  Sampling,
)

B, T, C, W = 4, 5, 6, 4
ROOT = 2
SELECT = jax.jit(select, static_argnames=('nodes', 'lam1', 'lam2', 'tau'))


def laws(seed, depth=T, vocab=C, batch=B):
  """float32[B, T, V] log-probabilities, best first, some of them sure."""
  rng = np.random.default_rng(seed)
  heat = rng.choice([0.3, 1, 3], size=(batch, depth, 1))
  logits = rng.normal(size=(batch, depth, vocab)) * heat
  logq = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return jnp.asarray(-np.sort(-logq, axis=-1), jnp.float32)


def judged(seed=0, width=W, **sizes):
  """(pool, log-reach) of random edge logits."""
  pool = beam(laws(seed, **sizes), width)
  edge, other = np.random.default_rng(seed).normal(
    size=(2, *pool.score_BTW.shape)
  )
  live = pool.score_BTW > -jnp.inf
  edge = jnp.where(live, jnp.asarray(3 * edge, jnp.float32), -jnp.inf)
  logp = conditional(edge, jnp.asarray(other, jnp.float32), pool)
  return pool, logp, path_sum(logp, pool.parent_BTW)


def chosen(pool, reach_BTW, nodes, **settings):
  """A tree whose tokens are ranks, which tell siblings apart."""
  root_B = jnp.full(len(reach_BTW), ROOT, jnp.int32)
  tree = SELECT(
    reach_BTW, pool.rank_BTW, pool.parent_BTW, root_B, nodes=nodes, **settings
  )
  tree_ops.check(tree)
  return tree


def paths(tree, b):
  """The paths of all valid nodes, in order."""
  token, parent, valid = (
    np.asarray(x[b]).tolist()
    for x in (tree.token_BN, tree.parent_BN, tree.valid_BN)
  )
  path = {0: ()}
  for i in range(1, len(token)):
    if valid[i]:
      path[i] = (*path[parent[i]], token[i])
  return [path[i] for i in sorted(path) if i]


def pool_paths(pool, b):
  """{(length - 1, place): ranks of the path} of live nodes."""
  score, parent, rank = (
    np.asarray(x[b]) for x in (pool.score_BTW, pool.parent_BTW, pool.rank_BTW)
  )
  path = {}
  for t, w in np.ndindex(*score.shape):
    if score[t, w] > -np.inf:
      above = path[t - 1, parent[t, w]] if t else ()
      path[t, w] = (*above, int(rank[t, w]))
  return path


def test_pool():
  """A full rectangle of distinct prefixes: the best of all, not of a few.

  Fails where a beam forgets a level, mixes parents, or dead starts leak in.
  """
  law_BTC = laws(0)
  pool = beam(law_BTC, W)
  for b in range(B):
    path = pool_paths(pool, b)
    assert len(path) == len(set(path.values())) == T * W
    level = [()]
    for t in range(T):
      longer = [(*p, k) for p in level for k in range(C)]
      score = lambda p, b=b: float(
        sum(law_BTC[b, i, k] for i, k in enumerate(p))
      )
      level = sorted(longer, key=score, reverse=True)[:W]
      assert [path[t, w] for w in range(W)] == level
      np.testing.assert_allclose(
        pool.score_BTW[b, t], [score(p) for p in level], atol=1e-5
      )


def test_fewer_prefixes_than_the_pool_holds():
  """Two tokens give 2, 4, 8, 16 prefixes; the rest of each row is dead."""
  pool, _, reach = judged(depth=4, vocab=2, width=10)
  live = pool.score_BTW > -jnp.inf
  assert jnp.sum(live, axis=2).tolist() == [[2, 4, 8, 10]] * B
  assert jnp.all((reach > -jnp.inf) == live)
  tree = chosen(pool, reach, 41)
  assert jnp.sum(tree.valid_BN, axis=1).tolist() == [25] * B
  tree = chosen(pool, reach, 60)  # more than the rectangle has
  assert tree.token_BN.shape == (B, 60)
  for field, value in (('token', 0), ('parent', 0), ('depth', 0)):
    assert jnp.all(getattr(tree, f'{field}_BN')[~tree.valid_BN] == value)


def test_conditionals_and_reach():
  """Siblings and `other` make a law; reach is the product along the path."""
  pool, _, _ = judged()
  edge, other = jax.random.normal(jax.random.key(0), (2, B, T, W)) * 3
  logp = np.asarray(conditional(edge, other, pool))
  reach = np.asarray(path_sum(jnp.asarray(logp), pool.parent_BTW))
  parent = np.asarray(pool.parent_BTW)
  for b, t, u in np.ndindex(B, T, W):
    mine = parent[b, t] == u
    weight = np.exp(np.asarray(edge[b, t, mine], np.float64))
    rest = np.exp(float(other[b, t, u]))
    want = weight / (weight.sum() + rest)
    np.testing.assert_allclose(np.exp(logp[b, t, mine]), want, atol=1e-5)
  for b, t, w in np.ndindex(B, T, W):
    total, place = 0.0, w
    for level in range(t, -1, -1):
      total += logp[b, level, place]
      place = parent[b, level, place]
    np.testing.assert_allclose(reach[b, t, w], total, atol=1e-4)
  assert np.all(np.exp(reach).sum(-1) <= 1 + 1e-5)


def greedy(pool, reach, b, budget, ends, lam1, lam2):
  """The authors' loop: best ratio first, ancestors with it, two caps."""
  path, reach = pool_paths(pool, b), np.asarray(reach[b])
  ratio = lambda at: reach[at] - np.log(np.float32(lam1 + lam2 * (at[0] + 1)))
  kept, picked = set(), 0
  for at in sorted(path, key=lambda at: (-ratio(at), at)):
    p = path[at]
    new = {p[:i] for i in range(1, len(p) + 1)} - kept
    if len(kept) + len(new) > budget or picked == ends:
      break
    kept, picked = kept | new, picked + 1
  return kept


@pytest.mark.parametrize('lam', [(1.0, 0.0), (1.0, 0.002), (0.3, 0.5)], ids=str)
def test_closed_by_itself(lam):
  """`tree_ops.check` sees closure; the ancestor loop then changes nothing.

  Its second cap counts nodes: 19 and 7 give the tree of 7.
  """
  pool, _, reach = judged(3)
  for nodes in (2, 8, 20):
    tree = chosen(pool, reach, nodes, lam1=lam[0], lam2=lam[1])
    for b in range(B):
      want = greedy(pool, reach, b, nodes - 1, 99, *lam)
      assert set(paths(tree, b)) == want and len(want) == nodes - 1
      if nodes == 8:
        assert want == greedy(pool, reach, b, 19, 7, *lam)


def test_budgets_and_thresholds_nest():
  """Trees grow with nodes, row by row, and shrink with tau."""
  pool, _, reach = judged(4)
  whole = chosen(pool, reach, 12)
  assert jnp.all(whole.valid_BN)
  for b in range(B):
    assert paths(chosen(pool, reach, 7), b) == paths(whole, b)[:6]
  sizes = []
  for tau in (0.02, 0.1, 0.5):
    tree = chosen(pool, reach, 12, tau=tau)
    for b in range(B):
      found = paths(tree, b)
      assert found == paths(whole, b)[: len(found)]
      kept = np.asarray(tree.logq_BN[b])[np.asarray(tree.valid_BN[b])]
      assert np.all(np.exp(kept) >= tau)
    sizes.append(int(jnp.sum(tree.valid_BN)))
  assert 12 * B > sizes[0] > sizes[1] > sizes[2] >= B


def test_brute_force():
  """No other closed set of that size has a larger sum of reach."""
  pool, _, reach = judged(5, width=3, depth=3, vocab=3)
  tree = chosen(pool, reach, 5)
  for b in range(B):
    path = pool_paths(pool, b)
    value = {p: float(jnp.exp(reach[b][at])) for at, p in path.items()}
    closed = lambda s: all(len(p) == 1 or p[:-1] in s for p in s)
    best = max(
      sum(map(value.get, s))
      for s in map(set, itertools.combinations(value, 4))
      if closed(s)
    )
    got = sum(map(value.get, paths(tree, b)))
    np.testing.assert_allclose(got, best, rtol=1e-6)


def round_of(batch, root=ROOT):
  zeros, ones = jnp.zeros(batch), jnp.ones(batch, jnp.int32)
  return Round(
    context=Context(jnp.full((batch, 3), root, jnp.int32), ones),
    key_B=sampling.row_keys(range(batch)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )


def test_without_a_scorer_it_is_ddtree():
  """Plain log-probabilities as conditionals give the drafter's best tree."""
  law_BTC = laws(6)
  tree = BestFirst(nodes=9, depth=T, fanout=C, shared_rows=True)
  rows = lambda d: Candidates(
    jnp.broadcast_to(jnp.arange(C), (B, 1, C)), law_BTC[:, d, None]
  )
  expand = lambda scratch, frontier: (rows(frontier.depth), scratch)
  want = tree.grow((), expand, rows(0), (), round_of(B))[0]
  for width, same in ((8, True), (1, False)):
    pool = beam(law_BTC, width)
    got = chosen(pool, pool.score_BTW, 9)
    for b in range(B):
      assert (set(paths(got, b)) == set(paths(want, b))) == same
      inside = set(pool_paths(pool, b).values())
      assert set(paths(got, b)) >= set(paths(want, b)) & inside


def test_an_oracle_predicts_what_is_accepted():
  """With the target's own conditionals the sum of reach is the mean accepted.

  A target whose law depends on depth and parent is walked 40 000 times. The
  drafter's sums, put in the place of reach, must miss that mean.
  """
  rng = np.random.default_rng(7)
  logits = 2 * rng.normal(size=(T, C, C))
  p_TVV = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  pool = beam(laws(7, batch=1), 4 * W)
  token = np.asarray(pool.rank_BTW[0])
  before = np.asarray(pool.parent_BTW[0])
  parent = np.full_like(token, ROOT)
  for t in range(1, T):
    parent[t] = token[t - 1][before[t]]
  logp = np.log(p_TVV[np.arange(T)[:, None], parent, token])[None]
  live = pool.score_BTW > -jnp.inf
  logp = jnp.where(live, jnp.asarray(logp, jnp.float32), -jnp.inf)
  tree = chosen(pool, path_sum(logp, pool.parent_BTW), 13)
  kept = set(paths(tree, 0))
  walks, accepted = 40_000, np.zeros(40_000)
  at = np.full(walks, ROOT)
  path = [()] * walks
  for t in range(T):
    uniform = rng.random((walks, 1))
    at = np.argmax(np.cumsum(p_TVV[t, at], -1) > uniform, axis=-1)
    path = [(*p, int(v)) for p, v in zip(path, at, strict=True)]
    accepted += [p in kept for p in path]
  mean, error = accepted.mean(), accepted.std() / walks**0.5
  expected = float(jnp.sum(jnp.exp(tree.logq_BN[0, 1:])))
  assert abs(mean - expected) < 4.5 * error
  score = {p: pool.score_BTW[0][i] for i, p in pool_paths(pool, 0).items()}
  surrogate = sum(float(jnp.exp(score[p])) for p in kept)
  assert abs(mean - surrogate) > 10 * error


def test_coupling_exchanges_the_marginal():
  """A scorer that says what the drafter says gives the coupled law back.

  Equal laws change nothing. Fails where `other` keeps the plain remainder.
  """
  plain_BTC, coupled_BTC = laws(8), jnp.flip(laws(9), axis=2)
  pool = beam(coupled_BTC, W)
  take = lambda x: jnp.take_along_axis(x, pool.rank_BTW, axis=2)
  plain, coupled = take(plain_BTC), take(coupled_BTC)
  mass = lambda x: jnp.sum(
    jnp.where(pools.children(pool), jnp.exp(x)[:, :, None], 0), axis=-1
  )
  other = jnp.log(jnp.maximum(1 - mass(plain), pools.REST))
  got = conditional(*exchange(plain, other, plain, coupled, pool), pool)
  np.testing.assert_allclose(got, coupled, atol=1e-4)
  edge = jax.random.normal(jax.random.key(1), plain.shape)
  same = exchange(edge, other, plain, plain, pool)
  assert jnp.all(same[0] == edge) and jnp.all(same[1] == other)
