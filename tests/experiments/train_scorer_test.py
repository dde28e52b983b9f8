"""From prompts to a scorer's folder, and what the script splits and pads."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

import specjax
from experiments import logs, run
from experiments import train_scorer as script
from experiments.trace_lots import Epochs
from specjax.training import trace_file
from specjax.training.batch import Fixed
from specjax.training.collect import Plan
from specjax.training.objectives.taps import Taps
from specjax.training.trace_file import Traces
from specjax.training.traces import Rounds
from specjax.trees import scorer
from specjax.weights.safetensors import load_tensors

pytestmark = pytest.mark.usefixtures('quick_compiles')

PLAN = Plan(nodes=12, new_tokens=12)


def numbered(counts):
  """Traces of prompts with so many rounds; a round's root is its number."""
  prompt = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
  root = np.arange(len(prompt), dtype=np.int32)
  names = ('token_BTC', 'logq_BTC', 'hidden_BTD', 'entropy_BT', 'score_BTW')
  names += ('parent_BTW', 'rank_BTW', 'seen_BPW', 'pi_BTW', 'rest_BTU')
  rounds = Rounds(root_B=root, **{name: root[:, None] for name in names})
  return Traces(
    rounds=rounds, prompt_B=prompt, prompts=len(counts), manifest={}
  )


def test_a_prompt_is_on_one_side():
  """Rounds of one text know one another: held out by rounds, the scorer would
  be judged on what it has seen. Every round is on one of the sides."""
  traces = numbered([3, 5, 2, 4] * 5)
  learn, check = script.split(traces, script.Training())
  sides = [set(traces.prompt_B[x.root_B].tolist()) for x in (learn, check)]
  assert not sides[0] & sides[1] and len(sides[1]) == 2
  every = np.concatenate([learn.root_B, check.root_B])
  assert sorted(every.tolist()) == list(range(70))
  with pytest.raises(ValueError, match='of 3 rounds of 2 prompts'):
    script.split(numbered([3, 0]), script.Training())


def test_the_last_lot_is_padded_with_nothing_seen():
  """Else a few rounds count several times."""
  rounds = numbered([5]).rounds
  rounds = rounds.replace(seen_BPW=np.ones((5, 2, 3), bool))
  lot = script.lot(rounds, np.array([4, 1]), 3)
  assert lot.root_B.tolist() == [4, 1, 0]
  assert lot.seen_BPW.any(axis=(1, 2)).tolist() == [True, True, False]


def test_lots_go_on_where_they_were():
  """Catches an epoch that leaves rounds out or comes again in its order, and a
  place that is lost: within an epoch, and at the end of one."""
  make = lambda **made: Epochs(numbered([7]).rounds, 3, 0, made)
  epochs, drawn, states = make(), [], []
  for _ in range(2 * epochs.steps):
    batch, ids = epochs.draw(None)
    assert batch.root_B[0, : len(ids)].tolist() == ids
    drawn.append(ids)
    states.append(json.loads(json.dumps(epochs.get_state())))
  one, two = ([*itertools.chain(*some)] for some in (drawn[:3], drawn[3:]))
  assert sorted(one) == sorted(two) == list(range(7)) and one != two
  for done in (1, 3):
    again = make()
    again.set_state(states[done - 1])
    assert [again.draw(None)[1] for _ in drawn[done:]] == drawn[done:]
  with pytest.raises(ValueError, match=r'rate was None and is 0\.1'):
    make(rate=0.1).set_state(states[0])


def test_a_scorer_is_written_and_serves(tmp_path):
  """The folder is for the very pool that was traced, and holds the epoch
  whose figures were reported."""
  decoder = specjax.load(method='dflash', dtype='float32')
  method = script.serving(decoder, 6, 8)
  prompts = [decoder.encode(text) for text in ('3 + 4 = ', 'Anna has ', 'He')]
  training = script.Training(epochs=3, batch=4, tree=9)
  figures = script.train_scorer(
    decoder, method, prompts, tmp_path, PLAN, training
  )
  served = specjax.load(
    method='taps',
    drafter=specjax.api.PRETRAINED / 'dflash',
    scorer=tmp_path,
    nodes=9,
    pool=6,
    fanout=8,
    dtype='float32',
  )
  got = served.generate('3 + 4 = ', max_new_tokens=12)
  want = decoder.generate('3 + 4 = ', max_new_tokens=12)
  assert got.tokens == want.tokens
  with pytest.raises(ValueError, match='pool is 6, here it is 48'):
    specjax.load(
      method='taps',
      drafter=specjax.api.PRETRAINED / 'dflash',
      scorer=tmp_path,
      fanout=8,
    )
  params = load_tensors(
    tmp_path,
    method.tree.tensors(),
    scorer.abstract(decoder.config.width),
    np.dtype('float32'),
  )
  _, check = script.split(trace_file.load(tmp_path / script.TRACES), training)
  fixed = Fixed(target=decoder.params.target)
  again = script.evaluate(params, fixed, check, training, Taps())
  assert again == pytest.approx(figures, rel=1e-4)
  assert 0 < figures['accepted'] and 0 < figures['marginal_kl']
  rows = run.read_rows(tmp_path / logs.ROWS)
  best = min(rows, key=lambda row: row['loss'])
  assert len(rows) == 3 and best == {**best, **figures}
  # The same command finds it done; another is no continuation.
  train = functools.partial(
    script.train_scorer, decoder, method, prompts, tmp_path, PLAN
  )
  assert train(training) == figures
  with pytest.raises(ValueError, match=r'rate was 0\.003 and is 0\.1'):
    train(dataclasses.replace(training, rate=0.1))
