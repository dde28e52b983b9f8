"""What a Draft-OPD training is told before its first step."""

import json

import pytest

import specjax
from experiments.train_opd import Rollouts, Rolls
from specjax.training.batch import Fixed


def rolls(**changes):
  few = {'per_step': 2, 'rows': 2, 'micro': 1}
  return Rolls(prompts='train.jsonl', **few | changes)


@pytest.mark.parametrize('changes', [{'rows': 4}, {'per_step': 3, 'micro': 2}])
def test_a_step_is_divided_evenly(changes):
  with pytest.raises(ValueError, match='give a per_step that both divide'):
    rolls(**changes)


def test_a_prompt_that_never_fits_is_named_at_once():
  """Not by the step that draws it, hours later."""
  decoder = specjax.load(method='dflash')
  fixed = Fixed(target=decoder.params.target)
  prompts = [[5] * 10, [6] * 10, [7] * 950]
  make = lambda given: Rollouts(given, decoder.method, fixed, prompts, (), 0)
  with pytest.raises(ValueError, match='room for prompts of 896 tokens'):
    make(rolls(longest=1000))
  with pytest.raises(ValueError, match='2 of 3 prompts have at most'):
    make(rolls(longest=512, per_step=4))
  assert json.loads(json.dumps(make(rolls(longest=512)).get_state()))
