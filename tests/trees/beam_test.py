"""EAGLE-2's tree against a builder that keeps lists and sorts them."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, tree_ops
from specjax.trees.beam import Beam, depths
from specjax.types import Ask, Candidates, Context, Round, Sampling

pytestmark = pytest.mark.usefixtures('quick_compiles')

ROWS, ROOT = 8, 1
# nodes, depth, width, vocabulary, scores on a grid (many ties)
CASES = [
  (12, 4, 3, 8, False),
  (12, 4, 3, 8, True),
  (60, 8, 10, 12, True),  # the authors' sizes
  (5, 8, 4, 6, False),  # levels that have no room
  (6, 5, 1, 6, False),  # a chain
  (9, 3, 4, 3, True),  # fewer tokens than the beam is wide
  (7, 2, 2, 5, True),  # every candidate is kept
]


def tables(seed, depth, vocab, grid):
  """float32[B, depth, parent token, V]: a law per depth and token."""
  rng = np.random.default_rng(seed)
  shape = (ROWS, depth, vocab, vocab)
  logits = rng.normal(size=shape) * rng.choice([0.3, 1, 6], (ROWS, depth, 1, 1))
  logq = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  if grid:
    logq = np.round(logq * 2) / 2  # exact in float32, and 0 is among them
  logq[rng.random(shape) < 0.1] = -np.inf
  return logq.astype(np.float32)


def ranked(law_V, width):
  """The best tokens with their scores; equal ones by id."""
  order = sorted(range(len(law_V)), key=lambda v: (-law_V[v], v))[:width]
  return [(v, law_V[v]) for v in order]


def naive(table, nodes, depth, width):
  """(path, score) of the kept nodes in breadth-first order."""
  pool, frontier = [], [((), np.float32(0))]
  for d in range(depth):
    level = []
    for path, score in frontier:
      law_V = table[d, path[-1] if path else ROOT]
      for token, logq in ranked(law_V, width):
        if score + logq > -np.inf:
          level.append(((*path, token), score + logq))
    first = len(pool)
    pool += level
    heap = [(-score, first + i) for i, (_, score) in enumerate(level)]
    frontier = [pool[i] for _, i in heapq.nsmallest(width, heap)]
  heap = [(-score, i) for i, (_, score) in enumerate(pool)]
  return [
    pool[i] for i in sorted(i for _, i in heapq.nsmallest(nodes - 1, heap))
  ]


def grow(tree, table):
  """The tree and what each step was asked for, with rows told by content."""
  table, asked = jnp.asarray(table), []
  b, vocab = len(table), table.shape[-1]
  zeros, ones = jnp.zeros(b), jnp.ones(b, jnp.int32)
  round = Round(
    context=Context(jnp.full((b, 3), ROOT, jnp.int32), ones),
    key_B=sampling.row_keys(range(b)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )

  def candidates(law_BPV, token_BW):
    logq_BWV = jax.vmap(lambda t, i: t[i])(law_BPV, token_BW)
    logq, token = jax.lax.top_k(logq_BWV, min(tree.ask.fanout, vocab))
    return Candidates(token, logq)

  def expand(history, frontier):
    asked.append((frontier.depth, frontier.token_BW.shape[1]))
    return candidates(table[:, frontier.depth], frontier.token_BW), (
      *history,
      (frontier.token_BW, frontier.row_BW),
    )

  @jax.jit
  def run():
    root = candidates(table[:, 0], jnp.full((b, 1), ROOT))
    return tree.grow((), expand, root, (), round)

  return *run(), asked


def paths(tree, b):
  token, parent, valid, logq = jax.device_get(
    (tree.token_BN[b], tree.parent_BN[b], tree.valid_BN[b], tree.logq_BN[b])
  )
  path = {0: ()}
  for i in np.flatnonzero(valid)[1:]:
    path[i] = (*path[parent[i]], int(token[i]))
  return [(path[i], logq[i]) for i in sorted(path) if i]


@pytest.mark.parametrize('case', CASES, ids=str)
def test_is_the_naive_tree(case):
  """Every node, in order. Catches ties that prefer a child or a later place, a
  beam that takes another row's parent, a level too many, and padding that
  pushes out a node."""
  nodes, depth, width, vocab, grid = case
  tree = Beam(nodes=nodes, depth=depth, width=width)
  table = tables(0, depth, vocab, grid)
  grown, _, asked = grow(tree, table)
  tree_ops.check(grown)
  assert grown.token_BN.shape == (ROWS, nodes)
  assert grown.max_depth == tree.ask.depth == min(depth, nodes - 1)
  assert asked == [(d, width) for d in range(1, tree.ask.depth)]
  for b in range(ROWS):
    want, got = naive(table[b], nodes, depth, width), paths(grown, b)
    assert [path for path, _ in got] == [path for path, _ in want]
    np.testing.assert_allclose(
      [s for _, s in got], [s for _, s in want], atol=1e-5
    )


def test_ties_are_there():
  """The cases above would not tell how equal scores stand without them."""
  nodes, depth, width, vocab, grid = CASES[1]
  kept = [naive(t, nodes, depth, width) for t in tables(0, depth, vocab, grid)]
  assert any(len({s for _, s in row}) < len(row) for row in kept)
  sure = [(p, s) for row in kept for p, s in row]
  assert len(sure) > ROWS


def test_rows_name_the_proposer():
  """`row` is the row of the step before whose candidate a token was: a drafter
  with a state per row would continue the wrong one, and every law here, which
  looks at tokens alone, would hide it."""
  table = tables(4, 4, 8, False)
  _, history, _ = grow(Beam(nodes=12, depth=4, width=3), table)
  for b in range(ROWS):
    before, beam = [((), np.float32(0))], None
    for d, (token_BW, row_BW) in enumerate(history):
      level = [
        ((*path, t), s + q, row)
        for row, (path, s) in enumerate(before)
        for t, q in ranked(table[b, d, path[-1] if path else ROOT], 3)
      ]
      if d:  # the first level is taken as it is
        level = sorted(level, key=lambda x: -x[1])[:3]
      beam = [x for x in level if x[1] > -np.inf]
      for i, (path, _, row) in enumerate(beam):
        assert (int(token_BW[b, i]), int(row_BW[b, i])) == (path[-1], row)
      before = [(path, s) for path, s, _ in level]
    assert beam


def test_only_the_root():
  """One row is plain decoding."""
  grown, _, asked = grow(
    Beam(nodes=1, depth=4, width=3), tables(0, 4, 8, False)
  )
  assert grown.token_BN.shape == (ROWS, 1) and not asked


def test_sizes():
  """The authors' 60 nodes choose among 710 candidates."""
  assert len(depths(8, 10)) == 710
  ask = Beam(nodes=60, depth=8, width=10).ask
  assert ask == Ask(depth=8, width=10, fanout=10)


@pytest.mark.parametrize(
  ('sizes', 'message'),
  [
    ((0, 3, 2), 'nodes is 0'),
    ((4, -1, 2), 'depth is -1'),
    ((4, 3, 0), 'width is 0'),
    ((4, 3, 1.5), 'width is 1.5'),
    ((4, 3, True), 'width is True'),
    ((10**14, 8, 10**6), 'have 7000001000001 at most'),  # in no time
    ((8, 2, 2), 'nodes is 8; 2 levels of width 2 have 7 at most'),
  ],
)
def test_bad_sizes(sizes, message):
  nodes, depth, width = sizes
  with pytest.raises(ValueError, match=message):
    Beam(nodes=nodes, depth=depth, width=width)
