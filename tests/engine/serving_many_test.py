"""Two hundred requests through eight slots, on the packaged model.

Faults it catches: what shows only after a slot was used many times, or only
where cancels, refusals and ends fall into the same chunk; a program per prompt
length, law or id; memory that grows with every request.
"""

import collections
import logging
import random

import jax
import pytest

import specjax

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('quick_compiles')]

COUNT, SLOTS, QUEUE, CONTEXT = 200, 8, 4, 300
TEXT = (
  'A robe takes 2 bolts of blue fiber and half that much white fiber. How many '
  'bolts in total does it take?\nTwo trains leave San Rafael at the same time. '
)
BAD = (
  '',
  [1, 260],
  {'prompt': 'x', 'temperature': -1.0},
  {'prompt': TEXT, 'max_new_tokens': 200},
  {'prompt': 'x', 'top_p': 2.0},
  {'prompt': 3},
)


def good(rng: random.Random, number: int) -> dict:
  begin = rng.randrange(40)
  return {
    'id': number,
    'prompt': TEXT[begin : begin + rng.choice([1, 9, 30, 33, 60, 100, 110])],
    'max_new_tokens': rng.choice([1, 2, 10, 24, 40]),
    'temperature': rng.choice([0.0, 0.0, 0.7, 1.0]),
    'top_k': rng.choice([0, 5]),
    'top_p': rng.choice([1.0, 0.9]),
    'seed': rng.randrange(2**32),
  }


def ask(rng: random.Random) -> list:
  """One in eight is bad."""
  return [
    rng.choice(BAD) if rng.random() < 1 / 8 else good(rng, i)
    for i in range(COUNT)
  ]


def texts(requests: list[dict]) -> list[list[int]]:
  """By plain decoding, each alone."""
  each = lambda name: [r[name] for r in requests]
  names = 'max_new_tokens', 'temperature', 'top_k', 'top_p', 'seed'
  return (
    specjax.load(method='ar')
    .generate(
      each('prompt'),
      batch_size=1,
      pad_to=128,
      **{name: each(name) for name in names},
    )
    .tokens
  )


def in_use() -> int:
  return sum(x.nbytes for x in jax.live_arrays())


def test_two_hundred_requests(caplog):
  rng = random.Random(3)
  requests = ask(rng)
  decoder = specjax.load(method='ddtree', nodes=9, slots=SLOTS)
  served = dict(context=CONTEXT, queue=QUEUE)
  buckets = [TEXT[:n] for n in (1, 40, 100)]
  for _ in decoder.serve([{'prompt': p} for p in buckets], **served):
    pass

  count = collections.Counter()
  pieces, results = collections.defaultdict(list), {}
  memory, cancelled = [], set()

  def source():
    for request in requests:
      count['taken'] += 1
      assert count['taken'] - count['ended'] <= SLOTS + QUEUE
      yield request

  serving = decoder.serve(source(), **served)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    for event in serving:
      pieces[event.id] += event.tokens
      if event.result is not None:
        assert event.id not in results
        results[event.id] = event.result
        count['ended'] += 1
        memory.append(in_use())
      if rng.random() < 0.15:  # one that runs, waits or has ended
        number = count['taken'] - rng.randint(1, SLOTS + QUEUE)
        if serving.cancel(number):
          cancelled.add(number)
  assert [r.message for r in caplog.records if 'Compiling' in r.message] == []
  assert max(memory) - min(memory) < 2**16 < in_use()

  assert sorted(results) == list(range(COUNT))
  assert all(pieces[i] == r.tokens for i, r in results.items())
  of = lambda reason: {
    i for i, r in results.items() if r.finish_reason == reason
  }
  assert of('error') == {i for i, r in enumerate(requests) if 'id' not in r}
  assert of('cancelled') == cancelled and len(cancelled) > 20
  assert len(of('error')) > 10
  right = [r for r in requests if 'id' in r]
  for request, want in zip(right, texts(right), strict=True):
    got = results[request['id']]
    whole = got.finish_reason != 'cancelled'
    assert got.tokens == (want if whole else want[: len(got.tokens)])
  assert {bool(results[i].tokens) for i in of('cancelled')} == {False, True}
