"""TAPS in a coupled round: who reads which law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from target_aware_test import B, C, T, W, chosen, laws, paths, round_of

from specjax.trees import pool as pools
from specjax.trees import target_aware
from specjax.trees.pool import beam
from specjax.types import Candidates, Features


@pytest.mark.parametrize(
  'settings', [{'lam2': 0.0}, {'lam1': 0.3, 'lam2': 2.0, 'tau': 0.01}], ids=str
)
def test_a_coupled_round_shows_the_scorer_plain_laws(monkeypatch, settings):
  """Catches coupled scores among the scorer's features, a pool of plain ones,
  or a cost that is not passed on: none changes a text. A scorer that repeats
  the drafter gives the coupled law back."""
  plain, coupled = laws(10), laws(11)
  order = np.random.default_rng(0).permuted(
    np.tile(np.arange(C), (B, T, 1)), axis=2
  )
  # Candidate k is token order[k]; plain law k is the token's, in any order.
  hidden = jax.random.normal(jax.random.key(2), (B, T, 3))

  def rows(d):
    extra = Features(hidden[:, d, None], -hidden[:, d, :1], plain[:, d, None])
    token = jnp.asarray(order[:, d, None], jnp.int32)
    return Candidates(token, coupled[:, d, None], extra)

  seen = []

  def drafters_own(w, lattice, nodes, root_B):
    seen.append((lattice, nodes))
    at = lambda u: nodes.parent_BTW == u
    left = [
      1 - jnp.sum(jnp.where(at(u), jnp.exp(nodes.step_BTW), 0), -1)
      for u in range(W)
    ]
    left = jnp.maximum(jnp.stack(left, -1), pools.REST)
    return nodes.step_BTW, jnp.log(left)

  monkeypatch.setattr(target_aware.scorer, 'logits', drafters_own)
  tree = target_aware.TargetAware(
    nodes=9, depth=T, shared_rows=True, pool=W, fanout=C, **settings
  )
  expand = lambda scratch, frontier: (rows(frontier.depth), scratch)
  grown, _ = tree.grow((), expand, rows(0), (), round_of(B))
  ((lattice, nodes),) = seen
  np.testing.assert_allclose(lattice.plain_BTC, plain)
  np.testing.assert_allclose(lattice.hidden_BTD, hidden)
  np.testing.assert_allclose(lattice.entropy_BT, -hidden[..., 0])
  rank = np.argsort(order, axis=2)
  step = np.take_along_axis(
    np.asarray(plain), np.take_along_axis(rank, nodes.token_BTW, 2), 2
  )
  np.testing.assert_allclose(nodes.step_BTW, step)
  pool = beam(coupled, W)
  want = chosen(pool, pool.score_BTW, 9, **settings)
  for b in range(B):
    named = lambda path, b=b: tuple(
      int(order[b, d, k]) for d, k in enumerate(path)
    )
    assert paths(grown, b) == [named(path) for path in paths(want, b)]
  np.testing.assert_allclose(grown.logq_BN, want.logq_BN, atol=1e-4)


def test_more_nodes_than_the_pool_has():
  """Else the tree would be padded without a word."""
  small = {'depth': 3, 'shared_rows': True, 'pool': 4}
  assert target_aware.TargetAware(nodes=13, **small).nodes == 13
  with pytest.raises(ValueError, match='gives 13 at most'):
    target_aware.TargetAware(nodes=14, **small)
