"""Drafters behind a fixed list and a buffer: texts, drafts and figures."""

import functools

import conformance_checks as checks
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest
import vocab_fixture as vx

from specjax.drafters import evolving_vocab as lib
from specjax.drafters.vocab_buffer import Index, Rule
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec
from specjax.vocab.indices import Indices

pytestmark = pytest.mark.usefixtures('quick_compiles')

V = fx.CONFIG.vocab
IDS = (2, 3, 5, 6, 9, 11)
SIZE = 4


def index(seed):
  ids = np.random.default_rng(seed).integers(0, V, size=(V, 2))
  return Index(
    id_VC=jnp.asarray(ids, jnp.int32), weight_VC=jnp.full((V, 2), 0.5)
  )


INDICES = Indices(semantic=index(1), statistical=index(2))
VOCAB = EvoSpec(ranks=IDS, buffer=SIZE, indices=INDICES)


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


@pytest.fixture(scope='module', params=['follow', 'rejection'])
def case(request):
  return vx.wrapped(request.param, VOCAB)


class TestText:
  def test_is_plain_decodings(self, case, plain):
    """Greedy and sampled, ragged, with a buffer that changes every round."""
    checks.check_greedy(case, plain)
    checks.check_sampled(case, plain)
    checks.check_something_accepted(case)

  def test_a_row_alone_gives_the_same(self, case):
    """Also its acceptance lengths: a buffer that is shared would show."""
    checks.check_batch(case)

  def test_neighbours_do_not_matter(self, case):
    checks.check_neighbours(case)

  def test_saved_between_rounds(self, case, tmp_path):
    """The buffer is in the state and nowhere else."""
    checks.check_save_and_restore(case, tmp_path)


def live_rounds(case, **law):
  """(drafted tokens, ids in the buffer, text so far) of live rows."""
  for state, tree in vx.rounds(case, **law):
    context = state.context
    for b in np.flatnonzero(~state.done_B):
      ids = state.draft.buffer.id_BI[b]
      tokens = tree.token_BN[b, 1:][tree.valid_BN[b, 1:]].tolist()
      yield (
        tokens,
        ids[ids >= 0].tolist(),
        context.tokens_BT[b, : context.length_B[b]].tolist(),
      )


@pytest.mark.parametrize('heat', [0.0, 1.0])
def test_drafts_stay_in_list_and_buffer(case, heat):
  """The buffer of before the round; and drafts come from it."""
  used = 0
  for tokens, held, _ in live_rounds(case, temperature=heat):
    assert set(tokens) <= {*IDS, *held}
    assert not set(held) & set(IDS) and len(set(held)) == len(held)
    used += len(set(tokens) & set(held))
  assert used > 5


def test_what_drafts_is_the_best_of_both():
  """A model that drafts for itself: the target's best of list and buffer, by
  an uncached pass. Catches rows that belong to other ids, and old ones."""
  rare = 0
  for tokens, held, prefix in live_rounds(vx.wrapped('self', VOCAB)):
    logits_V = np.asarray(checks.full_logits(prefix)[-1])
    assert tokens[0] == max((*IDS, *held), key=lambda i: logits_V[i])
    rare += tokens[0] in held
  assert rare > 3


def test_an_empty_buffer_is_fr_spec():
  """Ids and shape of every tree; scores but for the order of their sum."""
  idle = EvoSpec(ranks=IDS, buffer=SIZE, rule=Rule(), sources='')
  cut = vx.wrapped('follow', FrSpec(ranks=IDS))
  pairs = zip(
    vx.rounds(vx.wrapped('follow', idle)), vx.rounds(cut), strict=True
  )
  for (_, a), (_, b) in pairs:
    np.testing.assert_array_equal(a.token_BN, b.token_BN)
    np.testing.assert_array_equal(a.valid_BN, b.valid_BN)
    np.testing.assert_allclose(a.logq_BN, b.logq_BN, atol=1e-5)


def test_no_buffer_is_fr_spec():
  inner = vx.case('follow')
  none = EvoSpec(ranks=IDS, buffer=0).wrap(inner.method, inner.params)
  cut = FrSpec(ranks=IDS).wrap(inner.method, inner.params)
  assert none[0] == cut[0]
  same = jax.tree.map(np.array_equal, none[1], cut[1])
  assert all(jax.tree.leaves(same))


def test_the_buffer_is_worth_something():
  """Longer walks than the list alone; the tally says why."""
  mean = lambda case: np.mean([n for w in run(case).walks for n in w])
  run = functools.partial(fx.run, rows=fx.rows_of(new=40))
  case = vx.wrapped('self', VOCAB)
  assert mean(case) > mean(vx.wrapped('self', FrSpec(ranks=IDS))) + 0.2


def test_the_tally_counts_texts():
  """Against a count on the host, round by round, from states and texts.

  Catches a count with the buffer after the round, which holds what was missed.
  """
  counted = lambda state, b: np.asarray(
    [x[b] for x in jax.tree.leaves(state.draft.tally)[:4]]
  )
  case, rows = vx.wrapped('self', VOCAB), fx.rows_of(new=24)
  want = np.zeros((3, 4), int)  # tokens, rare, held, hits
  states = [state for state, _ in vx.rounds(case, rows)]
  last = fx.run(case, rows).state
  for before, after in zip(states, [*states[1:], last], strict=True):
    for b in np.flatnonzero(~before.done_B):
      r = before.rounds_B[b]
      n, length = int(after.walk_BR[b, r]), int(before.context.length_B[b])
      kept = int(after.context.length_B[b]) - length
      if kept < n:  # the cap has cut it: what was cut cannot be seen
        n = kept
      new = np.asarray(after.context.tokens_BT)[b, length : length + n]
      held = np.isin(new, before.draft.buffer.id_BI[b])
      drafts = int(after.walk_BR[b, r]) - 1
      rare = ~np.isin(new, IDS)
      counts = [n, rare.sum(), held.sum(), held[:drafts].sum()]
      want[b] += counts
      if n == after.walk_BR[b, r]:  # to the token where nothing was cut
        assert counted(after, b) - counted(before, b) == pytest.approx(counts)
  tally = last.draft.tally
  got = np.stack(
    [tally.token_B, tally.rare_B, tally.held_B, tally.hit_B], axis=1
  )
  cut = np.asarray(
    [sum(w) + 1 - 24 for w in fx.outcome(last, rows).walks]
  )  # tokens of the last round beyond the cap
  np.testing.assert_array_equal(got[:, 0] - cut, want[:, 0])
  assert np.all(got[:, 1:] >= want[:, 1:])
  assert np.all(got[:, 1:] - want[:, 1:] <= cut[:, None])
  assert want[:, 3].sum() > 5
  rate_B = np.asarray(lib.coverage(tally))
  np.testing.assert_allclose(rate_B, 1 - (got[:, 1] - got[:, 2]) / got[:, 0])


def test_added_bytes():
  case = vx.wrapped('self', VOCAB)
  drafter, params = case.method.drafter, case.params
  state = jax.eval_shape(
    lambda: drafter.start(params.drafter, params.target, 2, 8)
  )
  got = lib.added_bytes(params.drafter, state)
  width = fx.CONFIG.width
  assert got == {
    'static': len(IDS) * (4 * width + 4),
    'indices': 2 * V * 2 * (4 + 4),
    'buffer': 2 * (SIZE * (4 * width + 12) + 4 * V + 4 + 20),
  }


def test_a_rules_own_sources_count():
  """Catches 'abc' in place of what the caller chose."""
  inner = vx.case('follow')
  made = lambda **settings: (
    EvoSpec(ranks=IDS, buffer=4, **settings)
    .wrap(inner.method, inner.params)[0]
    .drafter.rule.sources
  )
  assert made(rule=Rule(sources='a')) == 'a'
  assert made(rule=Rule(sources='a'), sources='bc') == 'bc'
  assert made(rule=Rule(use=1.0)) == made() == 'abc'


class TestRefusals:
  @pytest.mark.parametrize(
    ('settings', 'says'),
    [
      ({'buffer': 11}, r'list of 6 .* 10 tokens'),
      ({'buffer': -1}, 'buffer is -1'),
      ({'sources': 'abe'}, "'e' needs an index"),
      ({'sources': 'x'}, "sources are 'x'"),
      ({'size': 7}, '6 distinct ids'),
      ({'buffer': 2.5}, r'buffer is 2\.5'),
      ({'buffer': None}, 'buffer is None'),
      ({'sources': 5}, 'sources are 5'),
      ({'rule': 'abc'}, "rule is 'abc'; give a .*Rule"),
      ({'indices': 3}, 'indices are a int'),
      (
        {
          'indices': Indices(
            semantic=Index(jnp.zeros((9, 1)), jnp.ones((9, 1)))
          )
        },
        'semantic index knows 9 tokens',
      ),
    ],
  )
  def test_settings(self, settings, says):
    """Whether weights are there or not."""
    inner = vx.case('follow')
    vocab = EvoSpec(**{'ranks': IDS, 'buffer': 4, **settings})
    with pytest.raises(ValueError, match=says):
      vocab.wrap(inner.method, inner.params)
    with pytest.raises(ValueError, match=says):
      vocab.check(inner.method, fx.CONFIG)

  def test_pruned_heads_and_none(self):
    """An EAGLE-3 head has no row for what is to enter; nor has a lookup."""
    cut = vx.wrapped('follow', FrSpec(ranks=IDS))
    with pytest.raises(ValueError, match=r'pruned head \(6 rows for 16'):
      VOCAB.wrap(cut.method, cut.params)
    none = fx.make_case('lookup')
    with pytest.raises(ValueError, match='no output rows'):
      VOCAB.wrap(none.method, none.params)

  def test_a_cut_around_it(self):
    """It would silence the buffer."""
    inner = vx.wrapped('follow', VOCAB)
    outer = fx.Case(*FrSpec(ranks=IDS[:3]).wrap(inner.method, inner.params))
    with pytest.raises(ValueError, match='wrap the drafter once'):
      next(vx.rounds(outer))
