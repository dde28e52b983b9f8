"""Drafters behind a cut head: texts stay, drafts stay inside the list."""

import dataclasses

import conformance_checks as checks
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest
import vocab_fixture as vx

from specjax.drafters.draft_model import DraftModel
from specjax.drafters.trimmed_vocab import TrimmedVocab
from specjax.vocab.fr_spec import FrSpec

pytestmark = [
  pytest.mark.usefixtures('quick_compiles'),
  # EAGLE-3's own head has rows for some tokens only.
  pytest.mark.filterwarnings("ignore:the drafter's own head"),
]

IDS = (2, 3, 5, 6, 9, 11, 14)
NAMES = ('follow', 'rejection', 'dflash', 'treeflash', 'eagle3')


@pytest.fixture(scope='module', params=NAMES)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


def test_texts_are_plain_decodings(name, plain):
  """Greedy and sampled, ragged; a wrong map would cost speed and no text, so
  drafts must be kept and dropped too."""
  case = vx.wrapped(name, FrSpec(ranks=IDS))
  checks.check_greedy(case, plain)
  checks.check_sampled(case, plain)
  checks.check_something_accepted(case)


def test_a_row_alone_gives_the_same():
  checks.check_batch(vx.wrapped('follow', FrSpec(ranks=IDS)))


@pytest.mark.parametrize('heat', [0.0, 1.0])
def test_drafts_stay_in_the_list(name, heat):
  """With an id above any row's number: catches rows taken for ids."""
  case = vx.wrapped(name, FrSpec(ranks=IDS))
  drafted = set()
  for tokens, _ in vx.drafts(case, temperature=heat):
    drafted |= set(tokens)
  assert drafted <= set(IDS)
  assert max(drafted) >= len(IDS)


def test_the_whole_vocabulary_changes_nothing(name):
  """Trees are equal to the last bit: ids, scores and shape."""
  heat = 1.0 if name in ('follow', 'rejection') else 0.0
  whole = FrSpec(ranks=range(fx.CONFIG.vocab))
  vx.assert_same_trees(vx.case(name), vx.wrapped(name, whole), heat)


@pytest.mark.parametrize('heat', [0.0, 1.0])
def test_what_drafts_is_the_best_of_the_list(heat):
  """A model that drafts for itself: the target's best listed token, by an
  uncached pass. Catches rows that were gathered for other ids."""
  case = vx.wrapped('self', FrSpec(ranks=IDS))
  seen = 0
  for tokens, prefix in vx.drafts(case, temperature=heat):
    if heat == 0 and tokens:
      logits_V = np.asarray(checks.full_logits(prefix)[-1])
      assert tokens[0] == max(IDS, key=lambda i: logits_V[i])
      seen += 1
  assert heat or seen > 10


def test_cuts_nest():
  """The outer list wins, and its rows are right."""
  inner = vx.wrapped('self', FrSpec(ranks=(2, 3, 5, 6, 9)))
  once = vx.wrapped('self', FrSpec(ranks=(3, 9)))
  with pytest.warns(UserWarning, match='2 of the 3 listed'):
    twice = fx.Case(*FrSpec(ranks=(9, 3, 11)).wrap(inner.method, inner.params))
  assert np.asarray(twice.params.drafter.id_V).tolist() == [3, 9]
  vx.assert_same_trees(once, twice, 0.0)


def test_wrapping_touches_nothing_else():
  """A tied head: the embedding is the same array, the rows are a copy."""
  case = vx.case('self')
  method, params = FrSpec(ranks=IDS).wrap(case.method, case.params)
  assert params.drafter.inner is case.params.drafter
  assert params.target is case.params.target
  assert method == dataclasses.replace(
    case.method, drafter=TrimmedVocab(inner=case.method.drafter)
  )
  assert isinstance(method.drafter.inner, DraftModel) and hash(method)
  head_VD = np.asarray(case.params.drafter.head)
  np.testing.assert_array_equal(params.drafter.rows_VD, head_VD[list(IDS)])
  want = jax.tree.structure(method.drafter.init(jax.random.key(0), fx.CONFIG))
  assert want == jax.tree.structure(case.params.drafter)
  assert method.drafter.tensors() == case.method.drafter.tensors()


def test_a_drafter_without_a_head_is_refused():
  case = fx.make_case('lookup')
  with pytest.raises(ValueError, match=r"'lookup' has no output rows"):
    FrSpec(ranks=IDS).wrap(case.method, case.params)


def test_rows_of_a_pruned_head_are_chosen_by_id():
  """EAGLE-3 has rows for some tokens only, in any order here."""
  case = vx.wrapped('self', FrSpec(ranks=IDS))
  shuffled = jnp.asarray([14, 3, 9])
  pruned = case.params.drafter.replace(
    id_V=shuffled, rows_VD=case.params.drafter.inner.head[shuffled]
  )
  params = case.params.replace(drafter=pruned)
  with pytest.warns(UserWarning, match='3 rows: 2 of the 3 listed'):
    _, cut = FrSpec(ranks=(1, 3, 14)).wrap(case.method, params)
  assert np.asarray(cut.drafter.id_V).tolist() == [3, 14]
  want = np.asarray(case.params.drafter.inner.head)[[3, 14]]
  np.testing.assert_array_equal(cut.drafter.rows_VD, want)
  with pytest.raises(ValueError, match='none of the 2 listed'):
    FrSpec(ranks=(1, 2)).wrap(case.method, params)
