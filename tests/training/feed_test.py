"""What a feed makes of a corpus: every text once, whole, and again the same."""

import itertools
import json

import ml_dtypes
import numpy as np
import pytest

from specjax.training import corpus_writer
from specjax.training.batch import Batch
from specjax.training.corpus import Features, Sample, open_corpus
from specjax.training.feed import Feed

COUNT, LENGTH = 41, 24
ARRAYS = ('token_BT', 'wanted_BT', 'text_BT', 'position_BT')


def sample(i):
  """Lengths from 4 to 30, prompts from 1 to 27; no two texts alike."""
  length = 4 + (7 * i) % 27
  prompt = 27 if length == 30 else 1 + i % (length - 2)
  tokens = 1000 * (i + 1) + np.arange(length, dtype=np.int32)
  rows = (np.arange(length) + 30.0 * i)[:, None]
  taps = (rows + np.array([0.0, 0.5])).astype(ml_dtypes.bfloat16)
  return Sample(tokens, prompt, i, Features(taps, -taps[:, :1]))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corpus')
  facts = {'target': None, 'template': None, 'features': {'layers': [0]}}
  plan = {f'{k}': list(range(k, COUNT, 3)) for k in (2, 0, 1)}
  corpus_writer.write(folder, facts, plan, lambda ids: [sample(i) for i in ids])
  return open_corpus(folder)


def check(batch: Batch, ids):
  """Each text is the corpus's, cut to a row; the rest is empty."""
  left = iter(ids)
  micro, rows, _ = batch.token_BT.shape
  for m, b in itertools.product(range(micro), range(rows)):
    row = {name: getattr(batch, name)[m, b] for name in ARRAYS}
    text_T = row['text_BT']
    assert (np.diff(text_T[text_T > 0]) >= 0).all()
    for n in range(1, text_T.max() + 1):
      one, at_T = sample(next(left)), text_T == n
      end = min(len(one.tokens), LENGTH)
      assert np.array_equal(row['token_BT'][at_T], one.tokens[:end])
      assert np.array_equal(row['position_BT'][at_T], np.arange(end))
      wanted_T = np.arange(end) >= one.prompt_length
      assert np.array_equal(row['wanted_BT'][at_T], wanted_T)
      if batch.taps_BTE is not None:
        taps_TE, hidden_TD = one.features
        assert np.array_equal(batch.taps_BTE[m, b][at_T], taps_TE[:end])
        assert np.array_equal(batch.hidden_BTD[m, b][at_T], hidden_TD[:end])
    for name in ARRAYS:
      assert not row[name][text_T == 0].any()
  assert next(left, None) is None


def alike(a, b):
  (x, ids), (y, others) = a, b
  return ids == others and all(
    np.array_equal(getattr(x, name), getattr(y, name)) for name in ARRAYS
  )


FITTING = sorted(
  i for i in range(COUNT) if sample(i).prompt_length < min(30, LENGTH)
)


@pytest.mark.parametrize('pack', [True, False])
@pytest.mark.parametrize('features', [True, False])
def test_every_text_once(corpus, pack, features):
  """Catches texts lost, cut or mixed in packing, and features beside theirs."""
  feed = Feed(
    corpus, 3, LENGTH, micro=2, epochs=1, pack=pack, features=features
  )
  assert feed.texts == len(FITTING) < COUNT
  assert feed.dropped == COUNT - len(FITTING)
  assert feed.cut == sum(len(sample(i).tokens) > LENGTH for i in FITTING) > 0
  seen = []
  for batch, ids in feed:
    assert batch.token_BT.shape == (2, 3, LENGTH)
    assert batch.token_BT.dtype == batch.position_BT.dtype == np.int32
    assert batch.wanted_BT.dtype == bool
    assert (batch.text_BT.max() > 1) == pack or not pack
    check(batch, ids)
    seen += ids
  assert sorted(seen) == FITTING


def test_packing_saves_rows(corpus):
  """Catches a packer that puts each text in its own row."""
  rows = [
    sum((batch.text_BT[0].max(axis=-1) > 0).sum() for batch, _ in feed)
    for feed in (
      Feed(corpus, 3, LENGTH, epochs=1, pack=pack) for pack in (True, False)
    )
  ]
  assert rows[0] < 0.75 * rows[1] == 0.75 * len(FITTING)


def test_order(corpus):
  """Catches one order for all epochs, or for all seeds."""
  take = lambda **settings: [
    i for _, ids in Feed(corpus, 3, LENGTH, pack=False, **settings) for i in ids
  ]
  n = len(FITTING)
  ids = take(epochs=2)
  assert sorted(ids[:n]) == sorted(ids[n:]) == FITTING
  assert len({tuple(x) for x in (ids[:n], ids[n:], FITTING)}) == 3
  assert take(epochs=2) == ids
  assert take(epochs=1, seed=1) not in (ids[:n], ids[n:])
  assert take(epochs=1, shuffle=False) == FITTING
  assert len(take(steps=30)) == 90  # epochs without end


@pytest.mark.parametrize('pack', [True, False])
@pytest.mark.parametrize('done', [0, 1, 4, 9])
def test_goes_on_mid_epoch(corpus, pack, done):
  """Catches texts seen twice or never after a restart.

  Batches made ahead count for nothing, and four epochs are more than rows that
  are packed together.
  """
  settings = {'micro': 2, 'epochs': 4, 'seed': 3, 'pack': pack}
  feed = Feed(corpus, 2, LENGTH, **settings)
  for _ in range(done):
    next(feed)
  state = json.loads(json.dumps(feed.get_state()))
  rest = list(feed)
  assert len(rest) > 5
  other = Feed(corpus, 2, LENGTH, **settings)
  for _ in range(3):
    next(other)
  other.set_state(state)
  assert json.loads(json.dumps(other.get_state())) == state
  again = list(other)
  assert len(again) == len(rest)
  assert all(map(alike, again, rest))
  assert not alike(rest[0], rest[1])


def test_more_steps_may_follow(corpus):
  feed = Feed(corpus, 2, LENGTH, steps=3)
  assert len(list(feed)) == 3
  longer = Feed(corpus, 2, LENGTH, steps=5)
  longer.set_state(feed.get_state())
  whole = list(Feed(corpus, 2, LENGTH, steps=5))
  assert all(map(alike, list(longer), whole[3:]))


def test_states_of_other_feeds(corpus):
  """Catches a run that goes on with other batches and says nothing."""
  state = Feed(corpus, 2, LENGTH).get_state()
  with pytest.raises(ValueError, match='one of seed=0 and this one has seed=1'):
    Feed(corpus, 2, LENGTH, seed=1).set_state(state)
  part, _ = corpus.split(every=5)
  with pytest.raises(ValueError, match='one of the texts'):
    Feed(part, 2, LENGTH).set_state(state)


@pytest.mark.parametrize(
  'settings, named',
  [
    ({'rows': 0}, 'rows is 0'),
    ({'micro': 0}, 'micro is 0'),
    ({'length': 1}, 'length is 1'),
    ({'seed': 2**32}, 'seed is'),
    ({'epochs': 1, 'steps': 1}, 'epochs or steps'),
    ({'steps': 0}, 'steps is 0'),
  ],
)
def test_wrong_settings(corpus, settings, named):
  with pytest.raises(ValueError, match=named):
    Feed(corpus, **{'rows': 2, 'length': LENGTH} | settings)


def test_nothing_to_draft(tmp_path):
  """Catches rows of prompts alone, which teach nothing."""
  facts = {'target': None, 'template': None, 'features': None}
  one = sample(3)._replace(prompt_length=20, features=None)
  corpus_writer.write(tmp_path, facts, {'0': [3]}, lambda ids: [one])
  only = open_corpus(tmp_path)
  with pytest.raises(ValueError, match='shortest prompt has 20'):
    Feed(only, 1, 20)
  with pytest.raises(ValueError, match='--features=taps'):
    Feed(only, 1, 24, features=True)
  batch, ids = next(Feed(only, 1, 21))
  assert ids == [3] and batch.wanted_BT[0, 0].tolist() == [False] * 20 + [True]


def test_closed(corpus):
  feed = Feed(corpus, 2, LENGTH)
  next(feed)
  feed.close()
  with pytest.raises(ValueError, match='was closed'):
    next(feed)
