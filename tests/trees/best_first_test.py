"""Best-first trees against every prefix, and against the authors' own trees."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, tree_ops
from specjax.trees import best_first
from specjax.trees.best_first import BestFirst
from specjax.types import Candidates, Context, Round, Sampling

ROWS = 16  # cases per entry, one row of the batch each
ROOT = 0
# nodes, depth, vocabulary, one law per depth, scores on a grid (many ties)
CASES = [
  (5, 4, 8, True, False),  # as many nodes as a path has rows
  (9, 3, 4, True, True),
  (12, 3, 8, False, False),
  (9, 3, 8, False, True),
  (5, 4, 8, False, False),
  (12, 2, 2, True, True),  # more nodes than there are prefixes
  (12, 2, 2, False, False),
]


def laws(seed, depth, vocab, shared, grid):
  """float32[B, depth, parent token, V] log-scores, some not candidates.

  Two tokens lead at the root, and laws are flat or all but sure: where a sure
  branch is best, the second one has many children, which pruning must not lose.
  """
  rng = np.random.default_rng(seed)
  rows = 1 if shared else vocab
  heat = rng.choice([0.1, 1, 8], size=(ROWS, depth, rows, 1))
  logits = rng.normal(size=(ROWS, depth, rows, vocab)) * heat
  logits[: ROWS // 2, 0, :, :2] += 5
  logq = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  if grid:
    logq = np.round(logq * 2) / 2  # exact in float32, and so are the sums
  logq[rng.random(logq.shape) < 0.15] = -np.inf
  return np.broadcast_to(logq, (ROWS, depth, vocab, vocab)).astype(np.float32)


def candidates(table_BPV, token_BW):
  """The laws behind these tokens, best first."""
  logq_BWV = jax.vmap(lambda t, i: t[i])(table_BPV, token_BW)
  logq_BWC, token_BWC = jax.lax.top_k(logq_BWV, logq_BWV.shape[-1])
  return Candidates(token_BWC, logq_BWC)


def round_of(batch):
  zeros = jnp.zeros(batch)
  ones = jnp.ones(batch, jnp.int32)
  return Round(
    context=Context(
      tokens_BT=jnp.full((batch, 3), ROOT, jnp.int32), length_B=ones
    ),
    key_B=sampling.row_keys(range(batch)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )


def grow(tree, table):
  """The tree, and the width of every frontier it asked for."""
  table = jnp.asarray(table)
  round, widths = round_of(len(table)), []

  def expand(scratch, frontier):
    widths.append(frontier.token_BW.shape[1])
    return candidates(table[:, frontier.depth], frontier.token_BW), scratch

  @jax.jit
  def run():
    root = candidates(table[:, 0], jnp.full((len(table), 1), ROOT))
    return tree.grow((), expand, root, (), round)[0]

  return run(), widths


def brute_force(table, nodes, fanout):
  """(path, score) of the best prefixes; no pruning, no beam.

  Order: score, then length, then the parent's place, then rank.
  """
  depth, _, vocab = table.shape
  pool, level = [], [((), np.float32(0))]
  for d in range(depth):
    longer = []
    for place, (path, score) in enumerate(level):
      law = table[d, path[-1] if path else ROOT]
      ranked = sorted(range(vocab), key=lambda v: (-law[v], v))[:fanout]
      for rank, token in enumerate(ranked):
        total = score + law[token]
        if total > -np.inf:
          longer.append((-total, place, rank, (*path, token)))
    level = [(path, -total) for total, _, _, path in sorted(longer)]
    pool += level
  pool.sort(key=lambda entry: -entry[1])  # stable: shorter ones stay first
  return pool[: nodes - 1]


def paths(tree, b):
  """(path, score) of every valid node, in node order."""
  token, parent, valid, logq = jax.device_get(
    (tree.token_BN[b], tree.parent_BN[b], tree.valid_BN[b], tree.logq_BN[b])
  )
  path = {0: ()}
  for i in range(1, len(token)):
    if valid[i]:
      path[i] = (*path[parent[i]], int(token[i]))
  return [(path[i], logq[i]) for i in sorted(path) if i]


@functools.cache
def example(case):
  nodes, depth, vocab, shared, grid = case
  table = laws(sum(case), depth, vocab, shared, grid)
  return table, [brute_force(t, nodes, min(vocab, nodes - 1)) for t in table]


def tree_of(case):
  nodes, depth, vocab, shared, _ = case
  return BestFirst(nodes=nodes, depth=depth, fanout=vocab, shared_rows=shared)


@pytest.mark.parametrize('case', CASES)
def test_equals_brute_force(case):
  """Same nodes, scores and order, ties too; padding where none is left."""
  table, want = example(case)
  tree, widths = grow(tree_of(case), table)
  tree_ops.check(tree)
  for b in range(ROWS):
    assert paths(tree, b) == want[b]
  padding = ~tree.valid_BN
  for field, value in (('token', 0), ('parent', 0), ('depth', 0)):
    assert jnp.all(getattr(tree, f'{field}_BN')[padding] == value)
  assert jnp.all(tree.logq_BN[padding] == -jnp.inf)
  assert tree.max_depth == min(case[1], case[0] - 1)
  assert set(widths) == {1 if case[3] else case[0] - 1}


def test_cases_have_padding_and_ties():
  """The cases above reach what they are meant to reach."""
  assert any(len(w) < 11 for w in example(CASES[5])[1])
  scores = [s for _, s in example(CASES[1])[1][0]]
  assert len(set(scores)) < len(scores)


def test_wrong_pruning_is_caught(monkeypatch):
  """The product rule, on laws that differ by path, loses nodes."""
  real = best_first.pairs
  monkeypatch.setattr(
    best_first, 'pairs', lambda w, c, budget, shared: real(w, c, budget, True)
  )
  case = CASES[2]
  table, want = example(case)
  tree, _ = grow(tree_of(case), table)
  assert any(paths(tree, b) != want[b] for b in range(ROWS))


def test_one_candidate_fewer_is_caught(monkeypatch):
  """Both rules are tight: a smaller budget loses nodes."""
  real = best_first.pairs
  monkeypatch.setattr(
    best_first, 'pairs', lambda w, c, budget, s: real(w, c, budget - 1, s)
  )
  for case in (CASES[0], CASES[4]):
    table, want = example(case)
    tree, _ = grow(tree_of(case), table)
    assert any(paths(tree, b) != want[b] for b in range(ROWS))


def test_root_alone():
  """One node is plain decoding: nothing is asked."""
  table = example(CASES[0])[0]
  tree, widths = grow(tree_of((1, *CASES[0][1:])), table)
  assert tree_of((1, *CASES[0][1:])).ask.depth == 0
  assert tree.token_BN.shape == (ROWS, 1) and tree.max_depth == 0
  assert not widths


@pytest.mark.parametrize(
  'wrong', [{'nodes': 0}, {'depth': -1}, {'fanout': 0}, {'fanout': 2.5}]
)
def test_impossible_sizes(wrong):
  sizes = {'nodes': 4, 'depth': 2, 'fanout': 3} | wrong
  with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
    BestFirst(shared_rows=True, **sizes)


@pytest.mark.parametrize('index', range(3))
def test_recorded_trees(goldens, index):
  """The reference heap's trees (github.com/liranringel/ddtree), node by node.

  Fails where set, order or tie rule differs from a heap on the host.
  """
  path = goldens / 'byte_lm' / 'ddtree_trees.json'
  g = json.loads(path.read_text())[index]
  logq_DV = jax.nn.log_softmax(jnp.array(g['logits'], jnp.float32), axis=-1)
  depth, vocab = logq_DV.shape
  tree = BestFirst(
    nodes=g['budget'] + 1, depth=depth, fanout=vocab, shared_rows=True
  )
  logq_DC, token_DC = jax.lax.top_k(logq_DV, min(tree.ask.fanout, vocab))
  rows = lambda d: Candidates(token_DC[None, d, None], logq_DC[None, d, None])
  expand = lambda scratch, frontier: (rows(frontier.depth), scratch)
  grown = jax.jit(lambda: tree.grow((), expand, rows(0), (), round_of(1))[0])()
  tree_ops.check(grown)
  assert grown.token_BN[0, 1:].tolist() == g['tokens']
  assert grown.depth_BN[0, 1:].tolist() == g['depths']
  assert grown.parent_BN[0, 1:].tolist() == g['parents'][1:]
