"""The picture of a round: of the decode that it says it is of."""

import numpy as np
import pytest
from byte_lm_fixture import load

pytest.importorskip('matplotlib')
from matplotlib.figure import Figure

from experiments.figures.tree import draw, one_round

pytestmark = pytest.mark.usefixtures('quick_compiles')


@pytest.fixture(scope='module')
def decoder():
  return load('ddtree', nodes=9)


def tokens_of(tree, verdict):
  path = np.asarray(verdict.path_BP[0, : verdict.length_B[0]])
  return [*np.asarray(tree.token_BN[0])[path].tolist(), int(verdict.bonus_B[0])]


def test_rounds_are_those_of_the_decode(decoder):
  """Each begins with the token that the one before it ended with."""
  ids = load('ar').generate(['Two trains'], max_new_tokens=40).tokens[0]
  at = 0
  for number in range(3):
    found = tokens_of(*one_round(decoder, 'Two trains', number))
    assert found == ids[at : at + len(found)]
    at += len(found) - 1
  assert at > 3  # some draft was accepted


def test_all_nodes_and_the_bonus_are_drawn(decoder):
  tree, verdict = one_round(decoder, 'Two trains', 1)
  figure = Figure()
  axes = figure.subplots()
  draw(axes, tree, verdict, str)
  texts = [text.get_text() for text in axes.texts]
  assert len(texts) == int(tree.valid_BN[0].sum()) + 1
  assert texts[-1] == f'{int(verdict.bonus_B[0])}\nbonus'
  kept = [t for t in axes.texts if t.get_bbox_patch().get_facecolor()[1] > 0.95]
  coloured = [t for t in kept if t.get_bbox_patch().get_facecolor()[0] < 0.7]
  assert len(coloured) == int(verdict.length_B[0])


def test_a_round_behind_the_end(decoder):
  with pytest.raises(ValueError, match='the text ends before round 1200'):
    one_round(decoder, 'Two trains', 1200)
