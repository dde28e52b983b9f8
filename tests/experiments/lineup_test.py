"""Methods of a run by label, and what their variants add."""

import functools

import pytest

from experiments import evaluate, lineup
from experiments.lineup import Variant
from specjax.methods import dflash, lookup
from specjax.vocab.fr_spec import FrSpec

pytestmark = pytest.mark.usefixtures('quick_compiles')

RANKS = tuple(range(97, 123))


def cut(size, **settings):
  """DFlash behind a list of so many letters."""
  fields = {
    'label': 'cut',
    'method': functools.partial(dflash.build, nodes=4),
    'vocab': FrSpec(ranks=RANKS, size=size),
  }
  return Variant(**fields | settings)


def load(*methods):
  return lineup.load_all(methods, 'default', {}, 'float32')


def test_a_variant_is_wrapped_and_shares_the_target():
  """Catches a vocabulary that is lost, and weights that are there twice."""
  decoders = load('dflash', cut(5))
  assert list(decoders) == ['ar', 'dflash', 'cut']
  assert decoders['cut'].params.drafter.id_V.tolist() == [*RANKS[:5]]
  assert decoders['cut'].nodes == 4
  target = decoders['ar'].params.target
  assert all(d.params.target is target for d in decoders.values())


def test_another_list_is_another_run(tmp_path):
  """A wrapped method's text is the same: rows of both would be mixed."""
  settings = {
    'run_dir': tmp_path,
    'limit': 1,
    'max_new_tokens': 4,
    'dtype': 'float32',
  }
  evaluate.evaluate(methods=[cut(5)], **settings)
  evaluate.evaluate(methods=[cut(5)], **settings)  # no address in the record
  with pytest.raises(ValueError, match=r'vocab was .*size=5.* and is .*size=6'):
    evaluate.evaluate(methods=[cut(6)], **settings)


@pytest.mark.parametrize(
  ('methods', 'message'),
  [
    ([3], 'methods hold 3; give names'),
    ([cut(5, method='dflsh')], "methods names 'dflsh'"),
    ([cut(5, label='ar')], "labelled 'ar', which stands for plain decoding"),
  ],
)
def test_wrong_lineups_cost_no_time(methods, message, monkeypatch):
  """The last was left out in silence."""
  monkeypatch.setattr(
    lineup.api, 'load', lambda *a, **k: pytest.fail('loads first')
  )
  with pytest.raises(ValueError, match=message):
    load(*methods)


def test_one_label_for_two_variants():
  with pytest.raises(ValueError, match='labels of their own'):
    load(cut(5), cut(6))
  assert len(load(lookup.build, cut(5), cut(6, label='more'))) == 4
