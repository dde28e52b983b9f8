"""The loss of TAPS's scorer against plain loops, and what training does."""

import itertools

import jax
import jax.numpy as jnp
import methods_fixture as fixture
import numpy as np
import pytest

from specjax.training import step
from specjax.training.batch import Fixed
from specjax.training.objectives import taps
from specjax.training.objectives.taps import Taps
from specjax.training.traces import Rounds
from specjax.trees import scorer
from specjax.trees.pool import beam, law, path_sum, select
from specjax.trees.target_aware import nodes_of

pytestmark = pytest.mark.usefixtures('quick_compiles')

B, T, V, W, D = 4, 3, 6, 5, 8
EMBED = jnp.asarray(np.random.default_rng(1).normal(size=(V, D)), jnp.float32)
# Of the target, the embedding alone is read.
FIXED = Fixed(
  target=fixture.WEIGHTS.replace(embed_VD=EMBED, layers=(), head_VD=None)
)


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def rounds_of(seed, *, batch=B, width=W, nodes=None, link=2.0):
  """Rounds whose target knows the parent: p(v | u) ~ marginal(v) table(u, v).

  The first `nodes` of the pool by score are seen; None is all.
  """
  rng = np.random.default_rng(seed)
  table_VV = link * np.random.default_rng(0).normal(size=(V, V))
  logits_BTV = rng.normal(size=(batch, T, V))
  q_BTV = softmax(logits_BTV)
  token_BTC = np.argsort(-q_BTV, axis=-1).astype(np.int32)
  logq_BTC = jnp.asarray(
    np.log(np.take_along_axis(q_BTV, token_BTC, -1)), jnp.float32
  )
  root_B = rng.integers(0, V, batch).astype(np.int32)
  pool = jax.tree.map(np.asarray, beam(logq_BTC, width))
  pi_BTW = np.zeros((batch, T, width), np.float32)
  rest_BTU = np.zeros((batch, T, width), np.float32)
  seen_BPW = np.zeros((batch, T + 1, width), bool)
  live = pool.score_BTW > -np.inf
  cut_B = np.full(batch, -np.inf)
  if nodes is not None:
    cut_B = -np.sort(-pool.score_BTW.reshape(batch, -1))[:, nodes - 2]
  seen_BPW[:, 0, 0] = True
  seen_BPW[:, 1:] = live & (pool.score_BTW >= cut_B[:, None, None])
  for b, t, u in np.argwhere(seen_BPW[:, :-1]).tolist():
    up = root_B[b]
    if t:
      up = token_BTC[b, t - 1, pool.rank_BTW[b, t - 1, u]]
    p_V = softmax(logits_BTV[b, t] + table_VV[up])
    mine = live[b, t] & (pool.parent_BTW[b, t] == u)
    token_W = token_BTC[b, t, pool.rank_BTW[b, t]]
    pi_BTW[b, t, mine] = p_V[token_W[mine]]
    rest_BTU[b, t, u] = 1 - p_V[token_W[mine]].sum()
  rounds = Rounds(
    root_B=root_B,
    token_BTC=token_BTC,
    logq_BTC=logq_BTC,
    hidden_BTD=rng.normal(size=(batch, T, D)).astype(np.float32),
    entropy_BT=-(q_BTV * np.log(q_BTV)).sum(-1).astype(np.float32),
    score_BTW=pool.score_BTW,
    parent_BTW=pool.parent_BTW.astype(np.int16),
    rank_BTW=pool.rank_BTW.astype(np.int16),
    seen_BPW=seen_BPW,
    pi_BTW=pi_BTW,
    rest_BTU=rest_BTU,
  )
  return jax.tree.map(jnp.asarray, rounds)


def params_of(seed=0):
  """Random weights, norms and biases included."""
  leaves, tree = jax.tree.flatten(scorer.abstract(D))
  key = jax.random.key(seed)
  draw = lambda i, x: jax.random.normal(jax.random.fold_in(key, i), x.shape)
  return jax.tree.unflatten(
    tree, [draw(i, x) / 2 for i, x in enumerate(leaves)]
  )


def loops(rounds, params):
  """(KL sum, nodes u, BCE sum, nodes v), one node after another."""
  lattice, pool = rounds.lattice, rounds.pool
  nodes = nodes_of(lattice, pool)
  bound = scorer.bind(params, EMBED)
  edge, other = scorer.logits(bound, lattice, nodes, rounds.root_B)
  r = jax.tree.map(lambda x: np.asarray(x, np.float64), rounds)
  edge, other = np.asarray(edge, np.float64), np.asarray(other, np.float64)
  kl = bce = 0.0
  behind = 0
  clamp = lambda x: min(max(x, 1e-6), 1 - 1e-6)
  for b in range(len(r.root_B)):
    reach = {(0, 0): (1.0, 1.0)}
    for t in range(T):
      for u in np.flatnonzero(r.seen_BPW[b, t]).tolist():
        mine = [
          w
          for w in range(r.pi_BTW.shape[2])
          if r.parent_BTW[b, t, w] == u and r.score_BTW[b, t, w] > -np.inf
        ]
        total = np.exp(other[b, t, u]) + sum(np.exp(edge[b, t, mine]))
        q_rest, p_rest = np.exp(other[b, t, u]) / total, r.rest_BTU[b, t, u]
        if p_rest > 0:
          kl += p_rest * np.log(p_rest / q_rest)
        for w in mine:
          q, p = np.exp(edge[b, t, w]) / total, r.pi_BTW[b, t, w]
          kl += p * np.log(p / q) if p > 0 else 0
          above = reach[t, u]
          reach[t + 1, w] = above[0] * p, above[1] * q
          p, q = map(clamp, reach[t + 1, w])
          bce -= p * np.log(q) + (1 - p) * np.log(1 - q)
          behind += 1
  return kl, r.seen_BPW.sum(), bce, behind


def loss_of(rounds, params):
  mass_K = Taps().mass(FIXED, rounds, None)
  return Taps().loss(params, FIXED, rounds, None, mass_K)


@pytest.mark.parametrize(
  'options',
  [{}, {'nodes': 9}, {'width': 9}, {'width': 9, 'nodes': 12}],
  ids=str,
)
def test_plain_loops(options):
  """Catches a parent's law under another parent, siblings or `other` left out,
  a mean over the wrong nodes, and unseen or dead nodes that count."""
  rounds, params = rounds_of(3, **options), params_of()
  kl, nodes, bce, behind = loops(rounds, params)
  loss, metrics = loss_of(rounds, params)
  np.testing.assert_allclose(metrics['kl'], [kl, nodes], rtol=1e-4)
  np.testing.assert_allclose(metrics['bce'], [bce, behind], rtol=1e-4)
  np.testing.assert_allclose(loss, kl / nodes + 0.5 * bce / behind, rtol=1e-4)
  mass_K = Taps().mass(FIXED, rounds, None)
  np.testing.assert_allclose(mass_K, [nodes, behind])


def perfect(rounds):
  """The laws that a scorer with the labels for scores would give."""
  edge_BTW = jnp.log(jnp.maximum(rounds.pi_BTW, 1e-30))
  live_BTW = rounds.pool.score_BTW > -jnp.inf
  edge_BTW = jnp.where(live_BTW, edge_BTW, -jnp.inf)
  other_BTU = jnp.log(jnp.maximum(rounds.rest_BTU, 1e-30))
  return law(edge_BTW, other_BTU, rounds.pool)


@pytest.mark.parametrize('nodes', [None, 9])
def test_the_labels_are_the_minimum(nodes):
  """KL is 0 for q = pi and not for the marginals; BCE is least there too."""
  rounds = rounds_of(4, nodes=nodes)
  kl = taps.divergence(rounds, *perfect(rounds))
  assert abs(float(kl[0])) < 1e-4
  assert float(taps.divergence(rounds, *taps.marginal(rounds))[0]) > 1
  least = taps.reach_loss(rounds, perfect(rounds)[0])[0]
  for seed in range(5):
    logq_BTW, _ = taps.scored(params_of(seed), FIXED, rounds)
    assert taps.reach_loss(rounds, logq_BTW)[0] > least


def test_leaves_count_and_cost_nothing():
  """All of a childless node's law is `other`, in both: KL only divides by it.

  Fails where it is compared with an `other` of less than 1."""
  rounds = rounds_of(5)
  parent = np.asarray(rounds.parent_BTW)
  seen = np.array(rounds.seen_BPW)
  leaves = 0
  for b, t, u in np.argwhere(seen).tolist():
    if t == T or not np.any(parent[b, t] == u):
      seen[b, t, u], leaves = False, leaves + 1
  assert leaves > B * W  # some of them above the last row
  whole = loss_of(rounds, params_of())[1]['kl']
  without = rounds.replace(seen_BPW=jnp.asarray(seen))
  inner = loss_of(without, params_of())[1]['kl']
  np.testing.assert_allclose(whole[0], inner[0], rtol=1e-5)
  assert whole[1] == inner[1] + leaves


def test_an_oracle_grows_the_best_tree():
  """With labels as scores no closed set of that size has more reach."""
  rounds = rounds_of(6, width=4)
  reach_BTW = path_sum(perfect(rounds)[0], rounds.pool.parent_BTW)
  token_BTW = nodes_of(rounds.lattice, rounds.pool).token_BTW
  tree = select(
    reach_BTW, token_BTW, rounds.pool.parent_BTW, rounds.root_B, nodes=6
  )
  true = np.asarray(taps.target_reach(rounds))
  parent = np.asarray(rounds.parent_BTW)
  for b in range(B):
    places = [(t, w) for t in range(T) for w in range(4)]
    up = lambda t, w, b=b: (t - 1, int(parent[b, t, w]))
    best = max(
      sum(true[b][at] for at in some)
      for some in map(set, itertools.combinations(places, 5))
      if all(at[0] == 0 or up(*at) in some for at in some)
    )
    got = float(jnp.sum(jnp.exp(tree.logq_BN[b, 1:])))
    np.testing.assert_allclose(got, best, rtol=1e-4)


def test_every_leaf_learns():
  """Fails where a projection is cut off, the token table above all."""
  rounds = rounds_of(7, nodes=9, width=9)
  grads = jax.grad(lambda p: loss_of(rounds, p)[0])(params_of())
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    assert jnp.all(jnp.isfinite(grad)), path
    assert jnp.max(jnp.abs(grad)) > 1e-6, path


def updated(params, batches, objective=Taps()):  # noqa: B008  it is frozen
  """(state, figures) of one step."""
  optimizer = step.Optimizer(rate=1e-2, steps=10, warm_up=0.0)
  params = jax.tree.map(jnp.array, params)  # the state is donated
  state = step.begin(optimizer, objective, params, 0)
  return step.update(
    optimizer, objective, state, FIXED, batches, dtype='float32'
  )


def test_micro_batches_and_padding_change_nothing():
  """Catches means of means, and padded rounds that count; these hold NaN-free
  garbage that is not seen."""
  rounds, params = rounds_of(8, nodes=9), params_of()
  whole = jax.tree.map(lambda x: x[None], rounds)
  halves = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), rounds)
  other = rounds_of(9)
  other = other.replace(seen_BPW=jnp.zeros_like(other.seen_BPW))
  padded = jax.tree.map(lambda *x: jnp.stack(x), rounds, other)
  want, figures = updated(params, whole)
  for batches in (halves, padded):
    got, mine = updated(params, batches)
    for name in ('loss', 'kl', 'bce', 'grad_norm'):
      np.testing.assert_allclose(mine[name], figures[name], rtol=1e-4)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
      got.params,
      want.params,
    )


def test_rounds_and_unknown_labels_stay_apart():
  """Another round, or what is written where nothing is known, is not read."""
  rounds, params = rounds_of(10, nodes=9), params_of()
  logq_BTW, left_BTU = taps.scored(params, FIXED, rounds)
  mixed = jax.tree.map(
    lambda a, b: a.at[1:].set(b[1:]), rounds, rounds_of(11, nodes=9)
  )
  again_BTW, again_BTU = taps.scored(params, FIXED, mixed)
  np.testing.assert_allclose(logq_BTW[0], again_BTW[0], atol=1e-6)
  np.testing.assert_allclose(left_BTU[0], again_BTU[0], atol=1e-6)
  known_BTW = taps.labelled(rounds)
  assert 0 < jnp.sum(known_BTW) < known_BTW.size
  odd = rounds.replace(
    pi_BTW=jnp.where(known_BTW, rounds.pi_BTW, 0.7),
    rest_BTU=jnp.where(rounds.seen_BPW[:, :-1], rounds.rest_BTU, 0.7),
  )
  assert loss_of(odd, params)[0] == loss_of(rounds, params)[0]


def test_a_frozen_projection_stays():
  """As released: the hidden states' projection keeps its draw."""
  params = params_of()
  batches = jax.tree.map(lambda x: x[None], rounds_of(12))
  state, _ = updated(params, batches, Taps(frozen=('hidden_JD',)))
  assert jnp.all(state.params.hidden_JD == params.hidden_JD)
  assert jnp.any(state.params.token_JD != params.token_JD)
  state, _ = updated(params, batches)
  assert jnp.any(state.params.hidden_JD != params.hidden_JD)


def test_training_beats_the_marginals():
  """A target that knows the parent, marginals that cannot: the scorer learns
  most of the difference. Fails where labels and edges are out of step."""
  rounds = rounds_of(13, batch=32)
  batches = jax.tree.map(lambda x: x[None], rounds)
  sum_, count = taps.divergence(rounds, *taps.marginal(rounds))
  optimizer = step.Optimizer(rate=1e-2, steps=120, warm_up=0.0, decay=1e-4)
  params = scorer.init(jax.random.key(0), D)
  state = step.begin(optimizer, Taps(), params, 0)
  for _ in range(120):
    state, figures = step.update(
      optimizer, Taps(), state, FIXED, batches, dtype='float32'
    )
  assert figures['kl'] < 0.3 * sum_ / count
