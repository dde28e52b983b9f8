"""Vocabularies given to `specjax.load`, on byte_lm."""

import functools

import numpy as np
import pytest
from byte_lm_fixture import load

from specjax.drafters.evolving_vocab import EvolvingVocab
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec
from specjax.vocab.ranks import count_tokens, rank_tokens

pytestmark = pytest.mark.usefixtures('quick_compiles')

PROMPT = 'Tom has 3 boxes of 12 pens. How many pens does he have?\n'
SIZE = 16


@functools.cache
def text(method, vocab=None):
  """(ids, mean accepted) of a greedy answer."""
  decoder = load(method, nodes=8 if vocab else None, vocab=vocab)
  out = decoder.generate(PROMPT, max_new_tokens=48, stop_ids=())
  return out.tokens[0], out.stats.mean_accepted


def ranks():
  count_V = count_tokens([list(PROMPT.encode())], 258)
  return tuple(rank_tokens(count_V, (256,), SIZE).tolist())


def test_texts_stay_and_a_buffer_helps():
  """Plain decoding's text with 16 of 258 tokens; more is accepted with rare
  ones that follow the text, and nothing else was changed."""
  plain, _ = text('ar')
  cut, few = text('dflash', FrSpec(ranks=ranks()))
  evolving = EvoSpec(ranks=ranks(), buffer=SIZE)
  both, more = text('dflash', evolving)
  assert cut == plain and both == plain
  assert 1 < few < more


def test_load_wraps_the_method():
  vocab = EvoSpec(ranks=ranks(), buffer=SIZE)
  decoder = load('dflash', vocab=vocab)
  assert isinstance(decoder.method.drafter, EvolvingVocab)
  head_VD = np.asarray(decoder.params.target.head)
  drafter = decoder.params.drafter
  np.testing.assert_array_equal(drafter.rows_VD, head_VD[drafter.id_V])
