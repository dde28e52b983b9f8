"""Trees of whole families against a priority queue on the host."""

import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, tree_ops
from specjax.trees.families import Families
from specjax.types import Candidates, Context, Round, Sampling

ROWS = 8  # cases per entry, one row of the batch each
ROOT = 3
# nodes, depth, width, candidates there are
SHAPES = [
  (2, 1, 1, 4),
  (6, 9, 1, 3),  # a chain that the budget ends
  (12, 2, 2, 8),  # a budget that no tree of this depth and width fills
  (9, 4, 3, 3),
  (17, 3, 4, 9),  # whole families
  (20, 5, 4, 9),  # the last one cut
  (30, 15, 7, 12),
  (40, 5, 2, 6),  # many expansions, in which ties of depths meet
  (61, 4, 3, 5),
  (11, 4, 5, 3),  # fewer candidates than a family has places
]


def laws(shape, grid):
  """(token_BTC, logq_BTC), best first; on a grid nearly every score ties."""
  nodes, depth, _, fanout = shape
  rng = np.random.default_rng(nodes * 100 + depth)
  heat = rng.choice([0.1, 1, 8], size=(ROWS, depth, 1))
  logits = rng.normal(size=(ROWS, depth, fanout)) * heat
  logq = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  if grid:
    logq = np.round(logq)  # exact sums; zeros let a child tie its parent
  order = np.argsort(-logq, axis=-1, kind='stable')
  logq = np.take_along_axis(logq, order, axis=-1).astype(np.float32)
  return order.astype(np.int32), logq


def reference(token_TC, logq_TC, nodes, width, *, by_level=False):
  """(token, parent, depth, score) of a heap's nodes; FIFO of equals.

  `by_level`: shallow ones before deep ones instead, which is another tree.
  """
  tree, queue = [(ROOT, 0, 0, 0.0)], [(0.0, 0, 0)]
  while queue and len(tree) < nodes:
    score, _, index = heapq.heappop(queue)
    depth = tree[index][2]
    if depth == len(token_TC):
      continue
    law = zip(token_TC[depth], logq_TC[depth], strict=True)
    for token, logq in list(law)[: min(width, nodes - len(tree))]:
      total = float(np.float32(-score) + logq)
      level = depth + 1 if by_level else 0
      heapq.heappush(queue, (-total, level, len(tree)))
      tree.append((int(token), index, depth + 1, total))
  return tree


def grow(tree, token_BTC, logq_BTC):
  b = len(token_BTC)
  zeros, ones = jnp.zeros(b), jnp.ones(b, jnp.int32)
  round = Round(
    context=Context(jnp.full((b, 3), ROOT, jnp.int32), ones),
    key_B=sampling.row_keys(range(b)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )
  fanout = min(tree.ask.fanout, token_BTC.shape[-1])
  rows = lambda d: Candidates(
    jnp.asarray(token_BTC[:, d, None, :fanout]),
    jnp.asarray(logq_BTC[:, d, None, :fanout]),
  )
  expand = lambda scratch, frontier: (rows(frontier.depth), scratch)
  return jax.jit(lambda: tree.grow((), expand, rows(0), (), round)[0])()


def nodes_of(tree, b):
  """(token, parent, depth, score) of every valid node, in order."""
  fields = tree.token_BN, tree.parent_BN, tree.depth_BN, tree.logq_BN
  rows = zip(*(np.asarray(x[b]).tolist() for x in fields), strict=True)
  return [
    row for row, v in zip(rows, np.asarray(tree.valid_BN[b]), strict=True) if v
  ]


def tree_of(shape):
  nodes, depth, width, _ = shape
  return Families(nodes=nodes, depth=depth, width=width, shared_rows=True)


@pytest.mark.parametrize('grid', [False, True], ids=['random', 'tied'])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_equals_a_priority_queue(shape, grid):
  """Node by node, in the heap's own order; fails for any other tie rule."""
  token_BTC, logq_BTC = laws(shape, grid)
  tree = grow(tree_of(shape), token_BTC, logq_BTC)
  tree_ops.check(tree)
  assert tree.token_BN.shape == (ROWS, shape[0])
  for b in range(ROWS):
    want = reference(token_BTC[b], logq_BTC[b], shape[0], shape[2])
    got = nodes_of(tree, b)
    # A family with fewer candidates leaves its places empty, see below.
    if shape[3] >= shape[2]:
      assert got == want
    else:
      assert len(got) <= len(want)


def test_cases_tell_tie_rules_apart():
  """Another order of equal scores gives other trees; one tree has padding."""
  other = 0
  for shape in SHAPES:
    for rows in zip(*laws(shape, True), strict=True):
      size = shape[0], shape[2]
      fifo, level = reference(*rows, *size), reference(*rows, *size, by_level=1)
      other += fifo != level
  assert other > 4
  rows = [x[0] for x in laws(SHAPES[2], False)]
  assert len(reference(*rows, 12, 2)) == 7


def test_no_candidate_is_no_node():
  """A -inf score leaves a hole, and nothing hangs below it."""
  token_BTC, logq_BTC = laws((20, 5, 4, 9), False)
  logq_BTC[:, :, 2:] = -np.inf
  tree = grow(tree_of((20, 5, 4, 9)), token_BTC, logq_BTC)
  tree_ops.check(tree)
  for b in range(ROWS):
    want = reference(token_BTC[b], logq_BTC[b], 11, 2)  # five families of two
    got = nodes_of(tree, b)
    assert [(n[0], n[2], n[3]) for n in got] == [
      (n[0], n[2], n[3]) for n in want
    ]
  padding = ~tree.valid_BN
  assert jnp.all(tree.token_BN[padding] == 0)
  assert jnp.all(tree.logq_BN[padding] == -jnp.inf)


def test_differs_from_best_first():
  """Fails where one node is added per pop, as DDTree does: a weak sibling of
  a strong child takes a row here."""
  token_BTC = np.tile(np.arange(3, dtype=np.int32), (1, 2, 1))
  logq_BTC = np.log(np.tile(np.float32([0.9, 0.09, 0.01]), (1, 2, 1)))
  tree = grow(tree_of((4, 2, 3, 3)), token_BTC, logq_BTC)
  assert tree.depth_BN[0].tolist() == [0, 1, 1, 1]


def test_root_alone():
  token_BTC, logq_BTC = laws((6, 9, 1, 3), False)
  tree = tree_of((1, 9, 1, 3))
  assert tree.ask.depth == 0
  assert grow(tree, token_BTC, logq_BTC).token_BN.tolist() == [[ROOT]] * ROWS


@pytest.mark.parametrize(
  'wrong', [{'nodes': 0}, {'depth': 0}, {'width': 0}, {'shared_rows': False}]
)
def test_impossible_settings(wrong):
  name = next(iter(wrong)) if 'shared_rows' not in wrong else 'one law per'
  with pytest.raises(ValueError, match=name):
    Families(
      **{'nodes': 4, 'depth': 2, 'width': 3, 'shared_rows': True} | wrong
    )
