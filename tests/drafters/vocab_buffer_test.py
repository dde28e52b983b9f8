"""The buffer's update against a model of it in plain Python."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters import vocab_buffer as lib
from specjax.types import Accepted

V, P, SIZE, B = 24, 4, 5, 3
STATIC = (0, 1, 2, 3, 4, 5, 6, 7)
ROWS = jax.random.normal(jax.random.key(0), (V, 6))
# Powers of two: sums are exact, and ties are frequent.
RULE = lib.Rule(
  sources='abde', decay=0.5, margin=1.5, swaps=3, semantic=0.5, statistical=0.25
)


def index(seed):
  rng = np.random.default_rng(seed)
  ids = rng.integers(-1, V, size=(V, 3))  # static ids and blanks among them
  weights = 2.0 ** -rng.integers(0, 3, size=(V, 3))
  return lib.Index(
    id_VC=jnp.asarray(ids, jnp.int32),
    weight_VC=jnp.asarray(weights, jnp.float16),
  )


INDICES = (index(1), index(2))


@functools.partial(jax.jit, static_argnums=1)
def update(buffer, rule, accepted):
  return lib.update(buffer, rule, ROWS, INDICES, accepted)


@functools.partial(jax.jit, static_argnums=1)
def read(buffer, rule, accepted):
  return lib.read(buffer, rule, ROWS, INDICES, accepted)


def accepted(token_BP, start_B, length_B, bonus_B=None, logits_BPV=None):
  return Accepted(
    token_BP=jnp.asarray(token_BP, jnp.int32),
    start_B=jnp.asarray(start_B, jnp.int32),
    length_B=jnp.asarray(length_B, jnp.int32),
    taps_BPE=None,
    bonus_B=None if bonus_B is None else jnp.asarray(bonus_B, jnp.int32),
    logits_BPV=logits_BPV,
  )


class Model:
  """One sequence's buffer: a list of slots [id, score, last]."""

  def __init__(self, rule):
    self.rule, self.seen = rule, 0
    self.slots = [[-1, -np.inf, 0] for _ in range(SIZE)]

  def heard(self, token):
    found = [(token, self.rule.use)] if 'a' in self.rule.sources else []
    for source, scale, index in zip(
      'de', (self.rule.semantic, self.rule.statistical), INDICES, strict=True
    ):
      if source in self.rule.sources:
        pairs = zip(index.id_VC[token], index.weight_VC[token], strict=True)
        found += [(int(i), scale * float(w)) for i, w in pairs if i >= 0]
    return [(i, w) for i, w in found if i not in STATIC]

  def update(self, path, start, bonus):
    text = [*path, bonus]
    new = [t for i, t in enumerate(text) if start + i >= self.seen]
    self.seen = now = start + len(text)
    weights = collections.defaultdict(float)
    for token in new:
      for i, w in self.heard(token):
        weights[i] += w
    inside = {slot[0]: slot for slot in self.slots if slot[0] >= 0}
    if 'b' in self.rule.sources and bonus not in (*STATIC, *inside):
      weights[bonus] += self.rule.miss
    for slot in self.slots:
      slot[1] *= self.rule.decay ** len(new)
    for i in set(weights) & set(inside):
      inside[i][1], inside[i][2] = np.float32(inside[i][1] + weights[i]), now
    fresh = sorted((-w, i) for i, w in weights.items() if i not in inside)
    weak = sorted(self.slots, key=lambda s: (s[1], s[2], s[0]))
    pairs = list(zip(fresh, weak, strict=False))[: self.rule.swaps]
    swaps = 0
    for (w, i), slot in pairs:
      if -w > self.rule.margin * max(slot[1], 0):
        slot[:], swaps = [i, -w, now], swaps + 1
    return swaps


def assert_whole(buffer):
  """No id twice, none of the list, the map and the rows consistent."""
  for b in range(buffer.id_BI.shape[0]):
    ids = np.asarray(buffer.id_BI[b])
    used = ids[ids >= 0]
    assert len(set(used.tolist())) == len(used)
    assert not set(used.tolist()) & set(STATIC)
    want = np.full(V, lib.ABSENT)
    want[list(STATIC)] = lib.STATIC
    want[used] = np.flatnonzero(ids >= 0)
    np.testing.assert_array_equal(buffer.slot_BV[b], want)
    np.testing.assert_array_equal(
      buffer.row_BID[b][ids >= 0], np.asarray(ROWS)[used]
    )
    assert np.all(np.isneginf(buffer.score_BI[b]) == (ids < 0))


def empty(batch=B):
  return lib.empty(ROWS, jnp.asarray(STATIC), batch, SIZE)


@pytest.mark.parametrize('sources', ['abde', 'a', 'b', 'de', ''])
def test_random_streams_follow_the_model(sources):
  """Ids, scores, ages and swaps slot by slot, every round of three sequences.

  Catches a wrong victim, a lost or doubled token at a round's edge, decay by
  rounds, neighbours of another token, a stale map and rows of other ids.
  """
  rule, rng = (
    dataclasses.replace(RULE, sources=sources),
    np.random.default_rng(3),
  )
  buffer, models = empty(), [Model(rule) for _ in range(B)]
  start_B, swapped = np.zeros(B, int), 0
  root_B = rng.integers(0, V, B)
  for _ in range(60):
    token_BP = rng.integers(0, V, size=(B, P))
    token_BP[:, 0] = root_B
    length_B, bonus_B = rng.integers(1, P + 1, B), rng.integers(0, V, B)
    buffer, swap_B = update(
      buffer,
      rule,
      accepted(token_BP, start_B, length_B, bonus_B, jnp.zeros((B, P, V))),
    )
    assert_whole(buffer)
    for b, model in enumerate(models):
      swaps = model.update(
        token_BP[b, : length_B[b]].tolist(), start_B[b], int(bonus_B[b])
      )
      ids, scores, last = zip(*model.slots, strict=True)
      assert buffer.id_BI[b].tolist() == list(ids)
      assert buffer.score_BI[b].tolist() == list(scores)
      assert buffer.last_BI[b].tolist() == list(last)
      assert swap_B[b] == swaps
      swapped += swaps
    start_B, root_B = start_B + length_B, bonus_B
  assert swapped > 30 or not sources


def test_the_targets_best_enter_by_their_probability():
  """Source c: along the path only, at temperature 1, fixed ids left out."""
  rule = dataclasses.replace(RULE, sources='c', top_ids=2, margin=1.0)
  p_PV = np.full((P, V), 1e-4)
  p_PV[0, [9, 3]] = 0.6, 0.3
  p_PV[1, [9, 12]] = 0.2, 0.7
  p_PV[2, [20, 21]] = 0.5, 0.4  # behind the path
  p_PV /= p_PV.sum(1, keepdims=True)
  logits = jnp.log(jnp.asarray(p_PV))[None] + 3
  got, _ = update(
    empty(1), rule, accepted([[1, 2, 0, 0]], [0], [2], [1], logits)
  )
  order = np.argsort(-got.score_BI[0])
  assert got.id_BI[0][order[:3]].tolist()[:2] == [9, 12]
  want = [2 * (p_PV[0, 9] + p_PV[1, 9]), 2 * p_PV[1, 12]]
  np.testing.assert_allclose(got.score_BI[0][order[:2]], want, rtol=1e-5)
  assert np.isneginf(got.score_BI[0][order[2]])


def test_a_prompt_is_read_in_chunks():
  """Hand-computed: decay by distance from the end, two chunks, an empty one."""
  rule = dataclasses.replace(RULE, sources='a')
  one = functools.partial(accepted, start_B=[0], length_B=[4])
  buffer = read(empty(1), rule, one([[9, 1, 10, 9]]))
  assert buffer.id_BI[0].tolist() == [9, 10, -1, -1, -1]
  assert buffer.score_BI[0, :2].tolist() == [4 + 0.5, 2]
  chunk = accepted([[10, 11, 12, 13]], [4], [2])  # the rest is padding
  buffer = read(buffer, rule, chunk)
  assert buffer.id_BI[0].tolist() == [11, 10, 9, -1, -1]
  assert buffer.score_BI[0, :3].tolist() == [4, 2.5, 1.125]
  assert buffer.last_BI[0].tolist() == [6, 6, 4, 0, 0]
  assert_whole(buffer)
  same = read(buffer, rule, accepted([[15] * 4], [8], [0]))
  for a, b in zip(*map(jax.tree.leaves, (same, buffer)), strict=True):
    np.testing.assert_array_equal(a, b)
  # The prefill's token is the first root: in no chunk, counted once.
  logits = jnp.zeros((1, P, V))
  buffer, _ = update(
    buffer, rule, accepted([[14, 1, 0, 0]], [6], [2], [15], logits)
  )
  held = dict(zip(buffer.id_BI[0].tolist(), buffer.score_BI[0], strict=True))
  assert held[14] == held[15] == 4
  assert held[11] == 4 * 0.5**3  # three tokens on, the root among them
  buffer, _ = update(
    buffer, rule, accepted([[15, 0, 0, 0]], [8], [1], [1], logits)
  )
  held = dict(zip(buffer.id_BI[0].tolist(), buffer.score_BI[0], strict=True))
  assert held[15] == 2


def test_more_rare_tokens_than_slots():
  """A prompt keeps the best; of equal ones the lower id."""
  rule = dataclasses.replace(RULE, sources='a', decay=1.0)
  tokens = [[20, 8, 9, 10, 11, 12, 13, 20]]
  buffer = lib.read(empty(1), rule, ROWS, INDICES, accepted(tokens, [0], [8]))
  assert buffer.id_BI[0].tolist() == [20, 8, 9, 10, 11]
  assert_whole(buffer)


def test_of_equal_scores_the_one_of_use_earlier_goes():
  """8 was of use in this very round; catches the age before it, and the lower
  id."""
  rule = dataclasses.replace(RULE, sources='a', decay=1.0, margin=1.0)
  buffer = lib.empty(ROWS, jnp.asarray(STATIC), 1, 2)
  logits = jnp.zeros((1, P, V))
  for tokens, start in (([8, 9, 9, 1], 0), ([1, 8, 10, 10], 4)):
    last = 10 if start else 1
    buffer, _ = update(
      buffer, rule, accepted([tokens], [start], [P], [last], logits)
    )
  assert sorted(buffer.id_BI[0].tolist()) == [8, 10]


def test_a_sequence_does_not_see_its_neighbours():
  rng = np.random.default_rng(5)
  rule = dataclasses.replace(RULE, sources='abcde', decay=0.98)
  args = lambda: (rng.integers(0, V, (B, P)), [0] * B, [P] * B, [9] * B)
  logits = jax.random.normal(jax.random.key(1), (B, P, V))
  one = args()
  two = [np.array(x) for x in args()]
  two[0][0] = one[0][0]
  got, other = (
    update(empty(), rule, accepted(*x, logits))[0] for x in (one, two)
  )
  for a, b in zip(*map(jax.tree.leaves, (got, other)), strict=True):
    np.testing.assert_array_equal(a[0], b[0])
  assert (np.asarray(got.id_BI) != np.asarray(other.id_BI)).any()


def test_a_change_of_topic_is_followed():
  """Two topics with tail words of their own: what is held recovers within two
  half-lives of the score, and drops in between (else the test shows nothing).
  """
  vocab, topic, rng = 8 + 2 * 30, 30, np.random.default_rng(0)
  rows = jnp.ones((vocab, 1))
  buffer = lib.empty(rows, jnp.arange(8), 1, 12)
  step = jax.jit(
    lambda buffer, tokens: lib.update(
      buffer, lib.Rule(sources='ab'), rows, (None, None), tokens
    )[0]
  )
  share = 1 / np.arange(1, topic + 1) ** 1.5
  held, root = [], 0
  for i in range(400):
    first = 8 + (i >= 200) * topic
    bonus = first + rng.choice(topic, p=share / share.sum())
    held.append(int(buffer.slot_BV[0, bonus]) >= 0)
    round = accepted([[root]], [i], [1], [bonus], jnp.zeros((1, 1, vocab)))
    buffer, root = step(buffer, round), bonus
  before, at, after = (
    np.mean(held[part])
    for part in (slice(100, 200), slice(200, 204), slice(270, 400))
  )
  assert before > 0.7 and after > 0.7 and at < 0.6, (before, at, after)


@pytest.mark.parametrize(
  ('setting', 'says'),
  [
    ({'sources': 'af'}, "'af'"),
    ({'decay': 0.0}, 'decay is 0'),
    ({'margin': 0.5}, r'margin 0\.5'),
    ({'swaps': 0}, 'swaps is 0'),
    ({'swaps': 1.5}, r'swaps is 1\.5'),
    ({'top_ids': 'a'}, "top_ids is 'a'"),
    ({'sources': 3}, 'sources are 3'),
    ({'decay': 'a'}, "decay is 'a'"),
    ({'margin': float('nan')}, 'margin nan'),
    ({'use': -1}, 'use is -1'),
    ({'statistical': float('nan')}, 'statistical is nan'),
  ],
)
def test_wrong_rules_are_refused(setting, says):
  with pytest.raises(ValueError, match=says):
    lib.Rule(**setting)
