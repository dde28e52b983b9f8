"""Stops, caps, chunks and bookkeeping of the loop.

Prompt lookup on a tiny target: its texts repeat enough that drafts are kept.
"""

import dataclasses

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest
from conformance_checks import full_logits, observe_tree

from specjax.decode.loop import decode
from specjax.drafters.lookup import PromptLookup
from specjax.types import Frontier

pytestmark = pytest.mark.usefixtures('quick_compiles')


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


@pytest.fixture(scope='module')
def case():
  return fx.make_case('lookup')


@pytest.fixture(scope='module')
def greedy(case):
  """The greedy run without a stop id."""
  return fx.run(case, fx.rows_of())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Oracle(PromptLookup):
  """Proposes the text that its parameters hold: whole blocks are kept."""

  def begin(self, params, target, state, round, ask):
    at_BP = round.context.length_B[:, None] + jnp.arange(ask.depth)
    copied_BP = jnp.take_along_axis(params, at_BP, axis=1)
    first = Frontier(
      token_BW=copied_BP[:, :1], row_BW=jnp.zeros_like(at_BP[:, :1]), depth=0
    )
    return self.expand(params, target, copied_BP, first)


def _places(outcome, row: int) -> list[tuple[int, int]]:
  """(round, place in its block) of each token after the first."""
  return [(r, i) for r, n in enumerate(outcome.walks[row]) for i in range(n)][
    : len(outcome.texts[row]) - 1
  ]


def _inside_a_block(outcome) -> tuple[int, int]:
  """(row, index in its text) of a token that is new and not a block's last."""
  for row, text in enumerate(outcome.texts):
    for index, (r, i) in enumerate(_places(outcome, row), start=1):
      inside = i + 1 < outcome.walks[row][r]
      if inside and text[index] not in text[:index]:
        return row, index
  raise AssertionError('no run has a fresh token inside a block')


class TestStops:
  def test_stop_id_inside_an_accepted_block(self, case, plain):
    """Fails if what was accepted behind a stop id stays in the text."""
    law = {'temperature': 1.0}
    written = fx.run(plain, fx.rows_of(**law)).state.context.tokens_BT
    case = fx.Case(
      dataclasses.replace(case.method, drafter=Oracle()),
      case.params.replace(drafter=written),
    )
    whole = fx.run(case, fx.rows_of(**law))
    row, index = _inside_a_block(whole)
    assert whole.walks[row][0] == case.method.path_rows  # the oracle knows
    rows = fx.rows_of(stop_ids=(whole.texts[row][index],), **law)
    got = fx.run(case, rows)
    assert got.texts[row] == whole.texts[row][: index + 1]
    assert bool(got.state.stopped_B[row]) and bool(got.state.done_B[row])
    assert got.texts == fx.run(plain, rows).texts

  def test_stop_id_as_the_last_allowed_token(self, case, greedy):
    """Fails if a stop id on the cap counts as running into the cap."""
    text = greedy.texts[2]
    at = next(i for i in range(len(text)) if text[i] not in text[:i] and i > 1)
    rows = fx.rows_of(stop_ids=(text[at],), new=[24, 24, at + 1])
    got = fx.run(case, rows)
    assert got.texts[2] == text[: at + 1]
    assert bool(got.state.stopped_B[2])
    # One token earlier it is the cap and nothing else.
    rows = fx.rows_of(stop_ids=(text[at],), new=[24, 24, at])
    got = fx.run(case, rows)
    assert got.texts[2] == text[:at]
    assert not bool(got.state.stopped_B[2]) and bool(got.state.done_B[2])

  def test_first_token_is_a_stop_id(self, case, greedy):
    """Fails if only rounds look for stop ids: prefill emits a token too."""
    rows = fx.rows_of(stop_ids=(greedy.texts[0][0],)).part(0, 1)
    got = fx.run(case, rows)
    assert got.texts == [greedy.texts[0][:1]]
    assert got.state.rounds_B.tolist() == [0]
    assert got.state.stopped_B.tolist() == [True]

  def test_cap_of_one(self, case, greedy):
    """Fails if a round runs before the cap is looked at."""
    got = fx.run(case, fx.rows_of(new=1))
    assert got.texts == [text[:1] for text in greedy.texts]
    assert got.walks == [[], [], []]
    assert not np.any(got.state.stopped_B)

  def test_rows_differ_in_everything(self, case, plain):
    """Fails if any setting is read from another row, or once for all."""
    rows = fx.rows_of(
      new=[24, 9, 17],
      temperature=[0.0, 0.7, 1.3],
      top_k=[0, 5, 0],
      top_p=[1.0, 0.9, 0.8],
      min_p=[0.0, 0.0, 0.05],
      seed=[3, 1, 4],
    )
    stops = np.asarray([[7, -1, -1, -1], [2, 3, -1, -1], [-1] * 4])
    together = fx.run(case, rows, stops=stops)
    assert together.texts == fx.run(plain, rows, stops=stops).texts
    for i in range(3):
      one = rows.part(i, 1)
      # A greedy row alone is another program, and the same text.
      alone = fx.run(case, one, stops=stops[i : i + 1])
      assert alone.texts == [together.texts[i]]


class TestBookkeeping:
  def test_finished_rows_freeze(self, case):
    """Fails if a row that is done still emits or counts rounds."""
    rows = fx.rows_of(new=[24, 2, 24])
    state = fx.start(case, rows)
    frozen = None
    while not bool(jnp.all(state.done_B)):
      state, _ = decode(case.method, case.params, state, max_rounds=1)
      if bool(state.done_B[1]):
        names = ('context', 'rounds_B', 'walk_BR', 'logprob_BT', 'stopped_B')
        now = {
          n: jax.tree.map(lambda x: np.array(x[1]), getattr(state, n))
          for n in names
        }
        frozen = frozen or now
        jax.tree.map(np.testing.assert_array_equal, now, frozen)
    assert int(state.rounds_B[1]) < int(state.rounds_B[0])

  def test_chunks_are_one_run_and_records_are_walks(self, case, greedy):
    """Fails if a chunk loses a round, or an observer sees another one."""
    rows = fx.rows_of()
    state = fx.start(case, rows)
    seen, tokens = [], []
    options = {'max_rounds': 2, 'observe': observe_tree}
    while not bool(jnp.all(state.done_B)):
      state, records = decode(case.method, case.params, state, **options)
      assert 1 <= int(records.count) <= 2
      tree, walked_RB = jax.device_get(records.values)
      seen += walked_RB[: int(records.count)].tolist()
      tokens += tree.token_BN[: int(records.count), :, 0].tolist()
    got = fx.outcome(state, rows)
    assert got.texts == greedy.texts and got.walks == greedy.walks
    for row, walk in enumerate(got.walks):
      assert [n[row] for n in seen[: len(walk)]] == walk
      # The tree of a round hangs below the token that the last one ended with.
      ends = np.cumsum([0, *walk[:-1]])
      assert [t[row] for t in tokens[: len(walk)]] == [
        got.texts[row][end] for end in ends
      ]

  def test_observer_without_a_size(self, case):
    with pytest.raises(ValueError, match='max_rounds'):
      decode(
        case.method,
        case.params,
        fx.start(case, fx.rows_of()),
        observe=observe_tree,
      )

  def test_walks_add_up_to_the_text(self, greedy):
    """Fails if a round's length is not what it emitted (but for the cut)."""
    for row, walk in enumerate(greedy.walks):
      emitted = len(greedy.texts[row]) - 1  # prefill's token is no round's
      assert sum(walk[:-1]) < emitted <= sum(walk)
      assert len(walk) == int(greedy.state.rounds_B[row])
      assert not np.any(greedy.state.walk_BR[row, len(walk) :])
    assert max(map(max, greedy.walks)) > 1

  def test_logprobs_are_of_the_uncut_target(self, case):
    """Fails on temperature or top-p in them, or on a shift by one."""
    rows = fx.rows_of(temperature=[0.0, 0.5, 1.0], top_p=0.5)
    got = fx.run(case, rows)
    for prompt, text, logprobs in zip(
      rows.prompts, got.texts, got.logprobs, strict=True
    ):
      logp_TV = jax.nn.log_softmax(full_logits(prompt + text))
      at_T = np.arange(len(prompt) - 1, len(prompt) + len(text) - 1)
      want = np.asarray(logp_TV)[at_T, text]
      np.testing.assert_allclose(logprobs, want, atol=2e-4)
