"""TAPS' scorer against explicit loops and the authors' own selections."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_lm_fixture import FOLDER

from specjax import sampling, tree_ops
from specjax.trees import scorer
from specjax.trees.pool import beam, path_sum
from specjax.trees.scorer import Lattice, Nodes
from specjax.trees.target_aware import TargetAware
from specjax.types import (
  Candidates,
  Context,
  Features,
  Round,
  Sampling,
)
from specjax.weights.safetensors import load_target, load_tensors

TARGET = FOLDER / 'target'
V, D, T, C, W = 20, 12, 4, 5, 3
ROOT = 7


def test_size():
  """The authors' count at the width of Qwen3-4B; width enters twice."""
  size = lambda d: sum(x.size for x in jax.tree.leaves(scorer.abstract(d)))
  assert size(2560) == 176_894
  assert size(2561) - size(2560) == 64
  like = jax.eval_shape(lambda: scorer.init(jax.random.key(0), 64))
  assert like == scorer.abstract(64)
  assert len(scorer.tensors()) == len(jax.tree.leaves(like)) == 15


@pytest.fixture(scope='module')
def example():
  """Random weights, norms included, and a random round: (w, embed, ...)."""
  key = jax.random.key(0)
  shapes = scorer.abstract(D)
  leaves, tree = jax.tree.flatten(shapes)
  draw = lambda i, x: jax.random.normal(jax.random.fold_in(key, i), x.shape)
  w = jax.tree.unflatten(tree, [draw(i, x) / 2 for i, x in enumerate(leaves)])
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, T, V)) * 2
  logq = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  order = np.argsort(-logq, axis=-1)[..., :C]
  plain = jnp.asarray(np.take_along_axis(logq, order, -1), jnp.float32)
  lattice = Lattice(
    token_BTC=jnp.asarray(order, jnp.int32),
    score_BTC=plain,
    plain_BTC=plain,
    hidden_BTD=jnp.asarray(rng.normal(size=(2, T, D)), jnp.float32),
    entropy_BT=jnp.asarray(-(np.exp(logq) * logq).sum(-1), jnp.float32),
  )
  embed = jnp.asarray(rng.normal(size=(V, D)), jnp.float32)
  return w, embed, lattice


def perceptron(w, x):
  x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
  x = x * np.asarray(w.norm_I) + np.asarray(w.norm_bias_I)
  x = np.asarray(w.up_OI) @ x + np.asarray(w.up_bias_O)
  x = x / (1 + np.exp(-x))
  return float(np.asarray(w.down_1O)[0] @ x + np.asarray(w.down_bias_1)[0])


def test_equals_explicit_loops(example):
  """Every logit, node by node, from its path alone.

  Fails for a feature in the wrong place, a neighbour's depth, or `other` with
  the children's scalars or its own depth's hidden state.
  """
  w, embed, lattice = example
  pool = beam(lattice.score_BTC, W)
  take = lambda x: jnp.take_along_axis(x, pool.rank_BTW, axis=2)
  plain = take(lattice.plain_BTC)
  nodes = Nodes(
    token_BTW=take(lattice.token_BTC),
    parent_BTW=pool.parent_BTW,
    step_BTW=plain,
    total_BTW=path_sum(plain, pool.parent_BTW),
  )
  roots = jnp.array([ROOT, ROOT + 1])
  bound = scorer.bind(w, embed)
  edge, other = jax.jit(scorer.logits)(bound, lattice, nodes, roots)
  token, parent, step = (
    np.asarray(x) for x in (nodes.token_BTW, pool.parent_BTW, plain)
  )
  table, depths = np.asarray(w.token_JD), np.asarray(w.depth_RZ)
  tok = lambda v: table @ np.asarray(embed[v])
  hid = lambda b, t: (
    np.asarray(w.hidden_JD) @ np.asarray(lattice.hidden_BTD[b, t])
  )
  law = np.asarray(lattice.plain_BTC, np.float64)

  def scalars(b, depth):
    if depth == 0:
      return [0.0, 0.0, 0.0]
    row = law[b, depth - 1]
    entropy = float(lattice.entropy_BT[b, depth - 1])
    return [entropy, row[0] - row[1], min(np.exp(row).sum(), 1)]

  def total(b, t, n):
    return step[b, t, n] + (total(b, t - 1, parent[b, t, n]) if t else 0)

  for b, t, n in np.ndindex(2, T, W):
    d = t + 1
    above = token[b, t - 1, parent[b, t, n]] if t else roots[b]
    x = [tok(token[b, t, n]), tok(above), depths[d], [step[b, t, n]]]
    x += [scalars(b, d), [d / T, total(b, t, n), total(b, t, n) / d]]
    want = perceptron(w.edge, np.concatenate([*x, hid(b, t)]))
    np.testing.assert_allclose(edge[b, t, n], want, rtol=1e-3, atol=1e-4)
    if n and not t:
      continue  # depth 0 has one node
    u, sum_u = (token[b, t - 1, n], total(b, t - 1, n)) if t else (roots[b], 0)
    x = [tok(u), depths[t], [0], scalars(b, t)]
    x += [[t / T, sum_u, sum_u / max(t, 1)], hid(b, t)]
    want = perceptron(w.other, np.concatenate(x))
    np.testing.assert_allclose(other[b, t, n], want, rtol=1e-3, atol=1e-4)


def test_lead_and_mass_are_of_the_plain_law(example):
  """Coupled candidates are not in the plain law's order."""
  lattice = example[2]
  turned = lattice.replace(plain_BTC=jnp.flip(lattice.plain_BTC, axis=2))
  want, got = map(scorer._law_scalars, (lattice, turned))
  np.testing.assert_allclose(got, want, rtol=1e-6)
  one = lattice.replace(plain_BTC=lattice.plain_BTC[..., :1])
  assert jnp.all(scorer._law_scalars(one)[..., 1] == 0)


def test_deep_rows_share_the_last_depth(example):
  """A table of 32 depths serves a longer block."""
  w, embed, _ = example
  t = 40
  zero = jnp.zeros((1, t, 1))
  lattice = Lattice(
    token_BTC=zero.astype(int),
    score_BTC=zero,
    plain_BTC=zero,
    hidden_BTD=jnp.zeros((1, t, D)),
    entropy_BT=zero[..., 0],
  )
  nodes = Nodes(zero.astype(int), zero.astype(int), zero, zero)
  edge, other = scorer.logits(
    scorer.bind(w, embed), lattice, nodes, jnp.zeros(1, int)
  )
  assert jnp.all(jnp.isfinite(edge)) and jnp.all(jnp.isfinite(other))


def test_another_width_is_refused(example):
  w, embed, _ = example
  with pytest.raises(ValueError, match=r'width 12 .*the target has 11'):
    scorer.bind(w, embed[:, :-1])


def selected(game, params, tree):
  """The paths that our tree holds in a recorded round."""
  logq_TV = jax.nn.log_softmax(jnp.array(game['logits'], jnp.float32))
  entropy_T = -jnp.sum(jnp.exp(logq_TV) * logq_TV, axis=-1)
  logq_TC, token_TC = jax.lax.top_k(logq_TV, game['topk'])
  hidden_TD = jnp.array(game['draft_hidden'], jnp.float32)

  def rows(d):
    at = lambda x: x[None, d, None]
    extra = Features(at(hidden_TD), at(entropy_T), at(logq_TC))
    return Candidates(at(token_TC), at(logq_TC), extra)

  root = game['root']
  zeros, ones = jnp.zeros(1), jnp.ones(1, jnp.int32)
  round = Round(
    context=Context(jnp.full((1, 3), root, jnp.int32), ones),
    key_B=sampling.row_keys([0]),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )
  expand = lambda scratch, frontier: (rows(frontier.depth), scratch)
  grown = jax.jit(lambda p: tree.grow(p, expand, rows(0), (), round)[0])(params)
  tree_ops.check(grown)
  assert grown.token_BN[0, 0] == root and jnp.all(grown.valid_BN)
  return paths(grown.token_BN[0, 1:].tolist(), grown.parent_BN[0].tolist())


def paths(tokens, parents):
  path = {0: ()}
  for i, token in enumerate(tokens, 1):
    path[i] = (*path[parents[i]], token)
  return set(path.values())


@pytest.fixture(scope='module')
def recorded(goldens):
  """(rounds, trees, parameters, the target)."""
  folder = goldens / 'taps'
  games = json.loads((folder / 'selections.json').read_text())
  trees = [
    TargetAware(
      nodes=g['nodes'] + 1,
      depth=g['horizon'],
      shared_rows=True,
      pool=g['pool_width'],
      fanout=g['topk'],
    )
    for g in games
  ]
  params = load_tensors(
    folder / 'scorer.safetensors',
    scorer.tensors(),
    scorer.abstract(64),
    jnp.float32,
  )
  return games, trees, params, load_target(TARGET, stacked=False)


@pytest.mark.parametrize('index', range(2))
def test_recorded_selections(recorded, index):
  """The reference's sets (github.com/wzyyy-lab/TAPS-SP), path by path."""
  games, trees, params, target = recorded
  game, tree = games[index], trees[index]
  got = selected(game, tree.bind(params, target), tree)
  assert got == paths(game['token_ids'], game['parents'])


@pytest.mark.parametrize('fault', ['hidden', 'other', 'swapped'])
def test_recorded_selections_see_faults(recorded, fault, monkeypatch):
  """The same comparison fails for a scorer that reads something else.

  It does not see every fault (not another parent token): those are left to the
  explicit loops.
  """
  games, trees, params, target = recorded
  real = scorer.logits

  def broken(w, lattice, nodes, root_B):
    if fault == 'hidden':
      shifted = jnp.roll(lattice.hidden_BTD, 1, axis=1)
      lattice = lattice.replace(hidden_BTD=shifted)
    edge, other = real(w, lattice, nodes, root_B)
    return edge, other - 9 if fault == 'other' else other

  if fault == 'swapped':
    params = params.replace(
      token_JD=params.hidden_JD, hidden_JD=params.token_JD
    )
  monkeypatch.setattr(scorer, 'logits', broken)
  assert any(
    selected(game, tree.bind(params, target), tree)
    != paths(game['token_ids'], game['parents'])
    for game, tree in zip(games, trees, strict=True)
  )
