"""The independent drafter: its cache, its laws, and its method."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.decode.round import open_round
from specjax.drafters.draft_model import DraftModel
from specjax.methods import ar, draft_model
from specjax.models import config, transformer
from specjax.models.layers import unembed
from specjax.types import (
  Accepted,
  Ask,
  Context,
  Frontier,
  Params,
  Round,
  Sampling,
)

V = 16
HF = {
  'architectures': ['Qwen3ForCausalLM'],
  'vocab_size': V,
  'hidden_size': 16,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'intermediate_size': 32,
  'rope_theta': 10000.0,
}
SMALL = config.from_hf(HF)
TARGET = config.tiny(vocab=V, width=16, layers=1, mlp=16)
PROMPTS = ([1, 2, 3, 4, 1, 2, 3], [5] * 9, [3])
LENGTH_B = np.array([len(p) for p in PROMPTS])
TOKEN_BT = np.zeros((3, 10), np.int32)
for _row, _prompt in zip(TOKEN_BT, PROMPTS, strict=True):
  _row[: len(_prompt)] = _prompt
METHOD = draft_model.build(TARGET, HF, nodes=4, stacked=True)
DRAFTER = METHOD.drafter


@functools.cache
def params(own=True):
  """A target with its own drafter, or a model that drafts for itself."""
  small = transformer.init(SMALL, jax.random.key(1), scale=0.3)
  if not own:
    return Params(target=small, drafter=small)
  target = transformer.init(TARGET, jax.random.key(0), scale=0.3)
  return Params(target=target, drafter=small)


def settings(heat_B):
  """Never marked greedy as a whole: one program, and mixed rows, for all."""
  b = len(heat_B)
  return Sampling(
    temperature_B=jnp.asarray(heat_B, jnp.float32),
    top_k_B=jnp.zeros(b, jnp.int32),
    top_p_B=jnp.ones(b),
    min_p_B=jnp.zeros(b),
    filtering=False,
  )


def read(method, weights, heat_B=(1.0, 1.0, 1.0), new=16):
  return prefill(
    method,
    weights,
    jnp.asarray(TOKEN_BT),
    jnp.asarray(LENGTH_B),
    sampling.row_keys([0, 1, 2]),
    settings(heat_B),
    jnp.full((3, 4), -1),
    jnp.asarray(LENGTH_B + new),
    capacity=40,
  )


def text(method, weights, heat_B, new=16):
  """(answers, acceptance lengths per row)."""
  first = METHOD if isinstance(method.drafter, DraftModel) else method
  state = read(first, weights, heat_B, new)
  while not bool(state.done_B.all()):
    state, _ = decode(method, weights, state, max_rounds=1)
  ids, walks, rounds = jax.device_get(
    (state.context.tokens_BT, state.walk_BR, state.rounds_B)
  )
  answers = [
    ids[b, n : n + new].tolist() for b, n in enumerate(LENGTH_B.tolist())
  ]
  return answers, [walks[b, :r].tolist() for b, r in enumerate(rounds)]


@jax.jit
def fresh(weights, token_BT):
  """A causal pass without a cache: its rows, and log-probabilities."""
  out = transformer.read(weights, token_BT)
  logits_BTV = unembed(out.hidden_BTD, weights.head)
  return out.rows, jax.nn.log_softmax(logits_BTV, axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def begin(method, weights, state):
  round = open_round(method, weights, state)
  ask = dataclasses.replace(method.tree.ask, fanout=V)
  return DRAFTER.begin(weights.drafter, weights.target, state.draft, round, ask)


def scores(candidates, b, w):
  """float[V] of the candidates of one row."""
  score_V = np.zeros(V)
  score_V[candidates.token_BWC[b, w]] = candidates.logq_BWC[b, w]
  return score_V


close = functools.partial(np.testing.assert_allclose, atol=2e-5)


def assert_cache_is_right(weights, state):
  """What the next round reads is what a fresh pass would compute."""
  candidates, scratch = jax.device_get(begin(METHOD, weights, state))
  rows, logp_BTV = jax.device_get(
    fresh(weights.drafter, state.context.tokens_BT)
  )
  for b, n in enumerate(state.context.length_B.tolist()):
    for got, want, root in zip(
      *map(jax.tree.leaves, (scratch.cache, rows, scratch.rows)), strict=True
    ):
      close(got[:, b, :, : n - 1], want[:, b, :, : n - 1])
      close(root[:, b, :, 0], want[:, b, :, n - 1])
    close(scores(candidates, b, 0), logp_BTV[b, n - 1])


@pytest.mark.parametrize('own', [True, False])
def test_cache_equals_a_fresh_pass_after_every_round(own):
  """Ragged rows; the model that drafts for itself is always fully accepted.

  Without the second token of `begin` the row before the root is missing then.
  """
  weights = params(own)
  state = read(METHOD, weights, new=20)
  lengths = []
  for _ in range(4):
    assert_cache_is_right(weights, state)
    state, _ = decode(METHOD, weights, state, max_rounds=1)
    lengths.append(state.walk_BR[:, len(lengths)].tolist())
  assert_cache_is_right(weights, state)
  if own:
    assert len(set(itertools.chain(*lengths))) > 1, lengths  # a ragged batch
  else:
    assert lengths == [[4, 4, 4]] * 4


# A tree of two rows per depth below (7, 3): 5 and 2; 9 below 2 and 4 below 5;
# 1 and 8, both below 9.
STEPS = (((5, 2), (0, 0)), ((9, 4), (1, 0)), ((1, 8), (0, 0)))
PATHS = (((5,), (2,)), ((2, 9), (5, 4)), ((2, 9, 1), (2, 9, 8)))


@jax.jit
def draft_tree(weights):
  """(candidates per depth, the cache after 2, 9, 8 were accepted)."""
  context = Context(
    tokens_BT=jnp.asarray([[7, 3, 0, 0, 0, 0, 0, 0]]), length_B=jnp.array([2])
  )
  round = Round(
    context=context,
    key_B=sampling.row_keys([0]),
    noise_BPV=None,
    sampling=settings([0.0]),
  )
  # The row of 7 is missing, as after full acceptance.
  state = DRAFTER.start(weights, None, 1, 8)
  ask = Ask(depth=3, width=2, fanout=V)
  _, scratch = DRAFTER.begin(weights, None, state, round, ask)
  found = []
  for depth, (tokens, rows) in enumerate(STEPS, start=1):
    frontier = Frontier(
      token_BW=jnp.array([tokens]), row_BW=jnp.array([rows]), depth=depth
    )
    candidates, scratch = DRAFTER.expand(weights, None, scratch, frontier)
    found.append(candidates)
  path = Accepted(
    token_BP=jnp.array([[3, 2, 9, 8]]),
    start_B=jnp.array([1]),
    length_B=jnp.array([4]),
    taps_BPE=None,
  )
  return found, DRAFTER.commit(weights, None, state, scratch, path)


def test_a_tree_reads_its_own_ancestors_and_commits_its_path():
  """Each row equals a fresh pass over its own path, and no sibling's."""
  weights = params().drafter
  found, state = draft_tree(weights)
  for depth, (candidates, paths) in enumerate(
    zip(found, PATHS, strict=True), start=1
  ):
    for w, path in enumerate(paths):
      padded = [7, 3, *path, *[0] * (3 - depth)]
      logp_BTV = fresh(weights, jnp.array([padded]))[1]
      close(scores(candidates, 0, w), logp_BTV[0, 1 + depth])
  rows, _ = fresh(weights, jnp.array([[7, 3, 2, 9, 8]]))
  for got, want in zip(*map(jax.tree.leaves, (state, rows)), strict=True):
    close(got[:, :, :, :5], want)


def test_a_frontier_wider_than_asked_is_refused():
  _, scratch = jax.eval_shape(
    functools.partial(begin, METHOD),
    params(),
    jax.eval_shape(functools.partial(read, METHOD), params()),
  )
  wide = jnp.zeros((3, 2), jnp.int32)
  with pytest.raises(ValueError, match='2 rows at depth 1 exceeds'):
    jax.eval_shape(
      functools.partial(DRAFTER.expand, params().drafter, None),
      scratch,
      Frontier(token_BW=wide, row_BW=wide),
    )


def test_a_model_that_drafts_for_itself_is_always_believed():
  """Greedy and sampled rows; a wrong position or mask on either side shows."""
  _, walks = text(METHOD, params(own=False), (0.0, 1.0, 0.8))
  assert walks == [[4] * 4] * 3


def test_greedy_rows_are_plain_decodings():
  """Beside a row that samples."""
  heat_B = (0.0, 0.0, 1.0)
  got, _ = text(METHOD, params(), heat_B)
  assert got[:2] == text(ar.build(), params(), heat_B)[0][:2]


def test_one_node_is_plain_decoding():
  """Token for token also when sampled: no draft, no residual."""
  heat_B = (0.0, 1.0, 0.7)
  alone = draft_model.build(TARGET, HF, nodes=1, stacked=True)
  got, walks = text(alone, params(), heat_B)
  assert got == text(ar.build(), params(), heat_B)[0]
  assert walks == [[1] * 15] * 3


def test_first_draft_is_kept_as_often_as_the_laws_overlap():
  """sum min(p, q), exactly: less is waste, more is bias."""
  weights, b = params(), 3000
  method = draft_model.build(TARGET, HF, nodes=2, stacked=True)
  state = prefill(
    method,
    weights,
    jnp.tile(jnp.array([[2, 7]]), (b, 1)),
    jnp.full(b, 2),
    jax.random.split(jax.random.key(5), b),
    settings([1.0] * b),
    jnp.full((b, 1), -1),
    jnp.full(b, 6),
    capacity=8,
  )
  state, _ = decode(method, weights, state, max_rounds=1)
  kept_B = np.asarray(state.walk_BR[:, 0]) == 2
  first_B = np.asarray(state.context.tokens_BT)[:, 2]
  token_BT = jnp.asarray([[2, 7, v] for v in range(V)])
  p, q = (
    np.exp(fresh(w, token_BT)[1][:, -1])
    for w in (weights.target, weights.drafter)
  )
  chance_B = np.minimum(p, q).sum(1)[first_B]
  error = np.sqrt((chance_B * (1 - chance_B)).sum()) / b
  assert 0.1 < chance_B.mean() < 0.9
  assert abs(kept_B.mean() - chance_B.mean()) < 5 * error


def test_another_vocabulary_is_refused():
  with pytest.raises(ValueError, match=r'20 tokens.*16'):
    draft_model.build(TARGET, {**HF, 'vocab_size': 20})
  with pytest.raises(ValueError, match='nodes is 0'):
    draft_model.build(TARGET, HF, nodes=0)
