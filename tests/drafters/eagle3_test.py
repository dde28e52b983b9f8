"""EAGLE-3's drafter: the authors' own rounds, its cache, and its variants."""

import functools
import json

import eagle3_numpy as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eagle3_fixture import HF, TARGET, WIDTH, V

from specjax import sampling
from specjax.drafters.eagle3.weights import abstract
from specjax.method import bind
from specjax.methods import eagle3
from specjax.models import config, transformer
from specjax.tree_ops import ancestors
from specjax.types import (
  Accepted,
  Ask,
  Context,
  Frontier,
  Params,
  Round,
  Sampling,
)
from specjax.weights.safetensors import load_tensors, stored_shapes

CAPACITY = 24
TREE = {'nodes': 8, 'depth': 3, 'width': 2}


pytestmark = pytest.mark.usefixtures('quick_compiles')


def noisy(shapes, seed=0):
  """Random values for every float, norms too: a norm left out then shows."""
  rng = np.random.default_rng(seed)
  draw = lambda x: jnp.asarray(rng.normal(0.5, 0.5, x.shape), jnp.float32)
  return jax.tree.map(
    lambda x: draw(x) if x.dtype == jnp.float32 else x, shapes
  )


@functools.cache
def case():
  """(method, bound parameters) of a random drafter."""
  method = eagle3.build(TARGET, HF, **TREE)
  drafter = noisy(method.drafter.init(jax.random.key(1), TARGET))
  target = transformer.init(TARGET, jax.random.key(0), scale=0.3)
  return method, bind(method, Params(target=target, drafter=drafter))


def round_of(token_BT, length_B):
  b = len(length_B)
  zeros, ones = jnp.zeros(b), jnp.ones(b, jnp.int32)
  return Round(
    context=Context(jnp.asarray(token_BT), jnp.asarray(length_B, jnp.int32)),
    key_B=sampling.row_keys(range(b)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )


def accepted(token_BT, taps_BTE, start_B, length_B, rows):
  """Rows from `start` on; what stands behind `length` is garbage."""
  at_BP = np.asarray(start_B)[:, None] + np.arange(rows)
  wide = lambda x, v: np.pad(
    x, [(0, 0), (0, rows), *[(0, 0)] * (x.ndim - 2)], constant_values=v
  )
  take = lambda x: np.stack([row[i] for row, i in zip(x, at_BP, strict=True)])
  live_BP = np.arange(rows) < np.asarray(length_B)[:, None]
  token_BP, taps_BPE = take(wide(token_BT, 1)), take(wide(taps_BTE, 9))
  return Accepted(
    token_BP=jnp.asarray(np.where(live_BP, token_BP, 3)),
    start_B=jnp.asarray(start_B, jnp.int32),
    length_B=jnp.asarray(length_B, jnp.int32),
    taps_BPE=jnp.asarray(
      np.where(live_BP[..., None], taps_BPE, 5), jnp.float32
    ),
  )


@functools.partial(jax.jit, static_argnums=0)
def begin(method, params, state, round):
  return method.drafter.begin(
    params.drafter, params.target, state, round, method.tree.ask
  )


@functools.partial(jax.jit, static_argnums=0)
def commit(method, params, state, scratch, kept):
  return method.drafter.commit(
    params.drafter, params.target, state, scratch, kept
  )


def read(
  method, params, token_BT, taps_BTE, length_B, chunk, capacity=CAPACITY
):
  """The state after prompts of these lengths, read in chunks."""
  length_B = np.asarray(length_B)
  state = method.drafter.start(
    params.drafter, params.target, len(length_B), capacity
  )
  for first in range(0, max(length_B), chunk):
    here_B = np.clip(length_B - first, 0, chunk)
    start_B = np.full_like(length_B, first)
    kept = accepted(token_BT, taps_BTE, start_B, here_B, chunk)
    state = commit(method, params, state, None, kept)
  return state


def texts(seed, b, t):
  rng = np.random.default_rng(seed)
  taps = rng.normal(size=(b, t, 3 * WIDTH))
  return rng.integers(0, V, (b, t)).astype(np.int32), taps


def stable(scratch, n_B):
  """Cache rows before the root, zero elsewhere."""
  live_BS = np.arange(scratch.cache.capacity) < np.asarray(n_B)[:, None]
  cut = lambda x: np.where(live_BS[None, :, None, :, None], x, 0)
  return jax.tree.map(cut, scratch.cache)


def same(a, b, **tolerance):
  tolerance = {'rtol': 2e-5, 'atol': 2e-5} | tolerance
  close = lambda x, y: np.testing.assert_allclose(x, y, **tolerance)
  jax.tree.map(close, a, b)


@pytest.mark.parametrize('name', ['eagle3_pruned', 'eagle3_full'])
def test_the_authors_rounds(goldens, name):
  """Tokens, masks and depths of three rounds in a row, node by node.

  Catches a token beside the wrong feature, positions off by one, the halves of
  the input swapped, offsets read as ids, a recycled vector that is normed, rows
  of drafts that stay in the cache, and every slip in the tree.
  """
  folder = goldens / name
  record = json.loads((folder / 'rounds.json').read_text())
  settings = json.loads((folder / 'config.json').read_text())
  settings['tensors'] = stored_shapes(folder)
  method = eagle3.build(
    config.tiny(vocab=120, width=32, layers=8),
    settings,
    nodes=record['total_tokens'],
    depth=record['depth'] + 1,
    width=record['top_k'],
  )
  drafter, tree = method.drafter, method.tree
  shapes = abstract(drafter.settings, 'float32')
  raw = load_tensors(folder, drafter.tensors(), shapes, 'float32')
  params = bind(method, Params(target=None, drafter=raw))

  @jax.jit
  def run(state, round):
    root, scratch = drafter.begin(params.drafter, None, state, round, tree.ask)
    expand = functools.partial(drafter.expand, params.drafter, None)
    return tree.grow((), expand, root, scratch, round)

  state, scratch, start = drafter.start(params.drafter, None, 1, 64), None, 0
  for entry in record['rounds']:
    ids = np.asarray([entry['input_ids']], np.int32)
    taps_BTE = np.asarray([entry['features']])
    count = taps_BTE.shape[1]
    taps_BTE = np.pad(taps_BTE, ((0, 0), (start, 0), (0, 0)))
    rows = count if scratch is None else method.path_rows
    kept = accepted(ids, taps_BTE, [start], [count], rows)
    state = drafter.commit(params.drafter, None, state, scratch, kept)
    start += count
    token_BT = np.pad(ids, ((0, 0), (0, 64 - ids.shape[1])))
    grown, scratch = run(state, round_of(token_BT, [start + 1]))
    assert grown.token_BN[0].tolist() == entry['draft_tokens']
    assert grown.depth_BN[0].tolist() == entry['position_ids']
    np.testing.assert_array_equal(
      ancestors(grown.parent_BN)[0], np.asarray(entry['tree_mask'], bool)
    )


def test_a_prompt_in_chunks_is_one_prompt():
  """Catches a chunk whose first row lacks the feature before it, one that
  starts in front of position 0 and is moved, and a row that loses its last
  feature to later chunks of longer neighbours."""
  method, params = case()
  length_B = [13, 1, 4, 5, 8]
  token_BT, taps_BTE = texts(0, 5, CAPACITY)
  round = round_of(token_BT, np.asarray(length_B) + 1)
  results = [
    begin(
      method,
      params,
      read(method, params, token_BT, taps_BTE, length_B, chunk),
      round,
    )
    for chunk in (16, 4, 5)
  ]
  want, scratch = results[0]
  for root, other in results[1:]:
    np.testing.assert_array_equal(root.token_BWC, want.token_BWC)
    same(root.logq_BWC, want.logq_BWC)
    same(stable(other, length_B), stable(scratch, length_B))
    same(other.own[:, 0], scratch.own[:, 0])


def test_rounds_leave_rows_of_true_features():
  """Catches rows made of the drafter's own outputs, or of garbage behind the
  accepted path, that stay in the cache: each round against a prompt that is
  the whole text. Dead slots hold NaN all the while."""
  method, params = case()
  length_B = np.array([3, 6])
  token_BT, taps_BTE = texts(1, 2, CAPACITY)
  state = read(method, params, token_BT, taps_BTE, length_B, 8)
  rows = method.path_rows
  for walk_B in ([4, 1], [2, 4], [1, 3], [3, 2]):
    dead_BS = (
      np.arange(CAPACITY) >= (length_B - np.asarray(state.count_B))[:, None]
    )
    spoil = lambda x, d=dead_BS: jnp.where(d[:, None, :, None], jnp.nan, x)
    state = state.replace(cache=jax.tree.map(spoil, state.cache))
    round = round_of(token_BT, length_B + 1)
    root, scratch = begin(method, params, state, round)
    fresh = read(method, params, token_BT, taps_BTE, length_B, 24)
    want, clean = begin(method, params, fresh, round)
    same(root.logq_BWC, want.logq_BWC)
    same(stable(scratch, length_B), stable(clean, length_B))
    kept = accepted(token_BT, taps_BTE, length_B, walk_B, rows)
    state = commit(method, params, state, scratch, kept)
    length_B = length_B + walk_B
  assert max(length_B) + rows < CAPACITY


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'norm_before_residual': True},
    {'norm_before_fc': True},
    {'fc_norm': True},
    {'norm_output': True},
    {'num_hidden_layers': 2},
    {'draft_arch': 'qwen3'},
    {'rope_theta': 3.0, 'rope_parameters': {'rope_theta': 50.0}},
  ],
  ids=lambda changes: next(iter(changes), 'plain'),
)
def test_variants(changes):
  """Each switch against a loop in numpy: the root and two steps below it.

  Catches a switch that is read and not applied, or applied in another place.
  """
  method = eagle3.build(TARGET, HF | changes, **TREE)
  drafter = method.drafter
  raw = noisy(drafter.init(jax.random.key(1), TARGET), seed=2)
  target = transformer.init(TARGET, jax.random.key(0), scale=0.3)
  params = bind(method, Params(target=target, drafter=raw))
  token_BT, taps_BTE = texts(3, 1, CAPACITY)
  n = 5
  state = read(method, params, token_BT, taps_BTE, [n], 8)
  ask = Ask(depth=3, width=1, fanout=12)

  @jax.jit
  def run(state, round):
    found, scratch = drafter.begin(params.drafter, target, state, round, ask)
    laws = [found]
    for depth in (1, 2):
      frontier = Frontier(
        token_BW=laws[-1].token_BWC[:, :, 0],
        row_BW=jnp.zeros((1, 1), jnp.int32),
        depth=depth,
      )
      found, scratch = drafter.expand(params.drafter, target, scratch, frontier)
      laws.append(found)
    return laws

  laws = run(state, round_of(token_BT, [n + 1]))
  drafts = [int(law.token_BWC[0, 0, 0]) for law in laws[:2]]
  want = reference.laws(
    jax.device_get(raw),
    np.asarray(target.embed_VD),
    drafter.settings,
    taps_BTE[0, :n],
    [*token_BT[0, 1 : n + 1], *drafts],
  )
  for law, logp_V in zip(laws, want, strict=True):
    tokens, scores = np.asarray(law.token_BWC[0, 0]), law.logq_BWC[0, 0]
    rows = np.flatnonzero(raw.t2d_V)
    np.testing.assert_array_equal(np.sort(tokens), rows)
    same(scores, logp_V[np.searchsorted(rows, tokens)], atol=2e-4)
