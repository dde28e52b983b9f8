"""TAPS's scorer reads the same in training as in the real decode loop."""

import jax
import jax.numpy as jnp
import methods_fixture as fixture
import numpy as np
import pytest

from specjax.decode.loop import decode
from specjax.method import bind
from specjax.training.batch import Fixed
from specjax.training.objectives import taps
from specjax.training.traces import Watch, tracing
from specjax.trees import scorer
from specjax.trees.target_aware import nodes_of

pytestmark = pytest.mark.usefixtures('quick_compiles')


def test_training_scores_what_serving_scores():
  """The reach a serving tree is chosen by, in the real loop, is the one that
  the loss reads from a trace of the same round. Catches depths, parents or
  hidden states that are off by one between the two."""
  case = fixture.built('taps', nodes=17, pool=18)
  weights = scorer.init(jax.random.key(3), fixture.CONFIG.width)
  params = bind(case.method, case.params.replace(tree=weights), drafter=False)
  traced = tracing(case.method, 5 * 18 + 1)
  watch = Watch(pool=18, hidden='float32')
  seen = lambda tree, logits_BNV, verdict: tree
  state = fixture.start(fixture.Case(case.method, params), fixture.rows_of())
  fixed = Fixed(target=fixture.WEIGHTS)
  for _ in range(3):
    copy = jax.tree.map(jnp.copy, state)  # the loop donates it
    _, records = decode(
      traced, params.replace(tree=()), copy, max_rounds=1, observe=watch
    )
    state, trees = decode(
      case.method, params, state, max_rounds=1, observe=seen
    )
    rounds, tree = jax.tree.map(lambda x: x[0], (records.values, trees.values))
    logq_BTW, _ = taps.scored(weights, fixed, rounds)
    reach_BTW = taps.reach_of(rounds, logq_BTW)
    for b in range(len(rounds.root_B)):
      compare(rounds, reach_BTW, tree, b)


def compare(rounds, reach_BTW, tree, b):
  """Every node of a tree stands in the rounds' pool, with the same reach."""
  root = int(rounds.root_B[b])
  found = {(): 1.0}
  token = np.asarray(nodes_of(rounds.lattice, rounds.pool).token_BTW[b])
  score, parent = np.asarray(rounds.score_BTW[b]), rounds.parent_BTW[b]
  paths = {}
  for t, w in np.argwhere(score > -np.inf).tolist():
    above = paths[t - 1, int(parent[t, w])] if t else ()
    paths[t, w] = (*above, int(token[t, w]))
    found[paths[t, w]] = float(reach_BTW[b, t, w])
  assert int(tree.token_BN[b, 0]) == root
  path = {0: ()}
  best = []
  for n in range(1, tree.token_BN.shape[1]):
    path[n] = (*path[int(tree.parent_BN[b, n])], int(tree.token_BN[b, n]))
    best.append(found[path[n]])
    np.testing.assert_allclose(
      np.exp(float(tree.logq_BN[b, n])), best[-1], atol=1e-5
    )
  outside = sorted(found[p] for p in found.keys() - set(path.values()))
  assert min(best) * 1.02 > outside[-1]  # lam2 makes deep nodes dearer
