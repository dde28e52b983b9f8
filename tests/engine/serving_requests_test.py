"""What a caller may do to an engine: bad requests, cancels, sources that fail.

Faults these catch: an error that ends the whole engine or another's text, a
source read ahead without bound, a request that is lost or ends twice, a program
that is built anew for a new prompt, law or slot.
"""

import collections
import logging

import jax
import methods_fixture as fx
import pytest

import specjax
from specjax.decoder import Decoder
from specjax.engine import engine as engine_lib
from specjax.engine.requests import Request
from specjax.text import ByteTokenizer

pytestmark = pytest.mark.usefixtures('quick_compiles')

CONTEXT = 110
GOOD = Request(prompt=[3, 9], max_new_tokens=12, stop_ids=(), id='good')


@pytest.fixture(scope='module')
def decoder():
  case = fx.make_case('lookup')
  return Decoder(
    method=case.method,
    params=case.params,
    tokenizer=ByteTokenizer(end=15, mask=14),
    slots=2,
  )


@pytest.fixture(scope='module')
def good(decoder):
  return decoder.generate([3, 9], max_new_tokens=12, stop_ids=()).tokens[0]


def serve(decoder, requests, **options):
  return decoder.serve(requests, **{'context': CONTEXT, 'chunk': 2} | options)


def streamed(events):
  return [token for event in events for token in event.tokens]


def results(events):
  return {e.id: e.result for e in events if e.result is not None}


@pytest.mark.parametrize(
  ('item', 'says'),
  [
    ([], 'is empty'),
    ('', 'is empty'),
    (5, 'no string, list'),
    ([1, 2.5], 'no string, list'),
    ([1, 99], 'holds id 99; ids are 0 to 15'),
    ([-1], 'holds id -1'),
    ({'prompt': [1] * 50, 'max_new_tokens': 61}, '50 tokens and 61 new ones'),
    ({'prompt': [1], 'max_new_tokens': 110}, 'the context of 110'),
    ({'prompt': [1], 'max_new_tokens': 0}, 'max_new_tokens of row 0 is 0'),
    ({'prompt': [1], 'temperature': -0.5}, 'temperature of row 0 is -0.5'),
    ({'prompt': [1], 'temperature': float('nan')}, 'temperature of row 0'),
    ({'prompt': [1], 'temperature': 'hot'}, "'hot'; it must be >= 0"),
    ({'prompt': [1], 'top_p': 0}, 'top_p of row 0 is 0'),
    ({'prompt': [1], 'seed': -1}, 'seed of row 0 is -1'),
    ({'prompt': [1], 'stop_ids': [16]}, 'stop id 16'),
    ({'prompt': [1], 'stop_ids': 2.5}, 'TypeError'),
    ({'prompt': [1], 'stop': ['']}, 'none empty'),
    ({'prompt': [1], 'beams': 4}, "no setting 'beams'; it has prompt, id"),
    ({'prompt': [1], 'logit_bias': {}}, 'logit_bias is not supported'),
    ({'id': 3}, 'needs a prompt'),
    ({'prompt': [1], 'id': []}, 'cannot be looked up'),
    ({'prompt': [1], 'id': 'good'}, "id 'good' is that of"),
  ],
)
def test_a_bad_request_is_an_event(decoder, good, item, says):
  events = list(serve(decoder, [GOOD, item]))
  wrong = [e for e in events if e.request is item]
  (event,) = wrong
  assert event.result.finish_reason == 'error' and event.tokens == []
  assert says in event.result.error
  right = [e for e in events if e.request is GOOD]
  assert right[-1].result.tokens == good and right[-1].result.error is None
  assert streamed(right) == good


def test_the_longest_that_fits(decoder):
  """Prompt and answer fill the context to its last token, in every slot."""
  full = {'max_new_tokens': 70, 'stop_ids': (), 'prompt': [1, 2] * 20}
  want = decoder.generate(full['prompt'], max_new_tokens=70, stop_ids=())
  for result in results(serve(decoder, [full] * 3)).values():
    assert result.tokens == want.tokens[0]
    assert result.finish_reason == 'length'


def test_cancel(decoder, good):
  """Running, waiting and unknown ones; neighbours do not notice."""
  long = lambda id: Request(
    prompt=[1, 2, 3], max_new_tokens=40, stop_ids=(), id=id
  )
  serving = serve(decoder, [long('a'), GOOD, long('w'), long('b')], queue=2)
  events, told = [], False
  for event in serving:
    events.append(event)
    if event.id == 'a' and not told:
      told = serving.cancel('a') and serving.cancel('w')
      assert not serving.cancel('nobody')
  done = results(events)
  assert told and not serving.cancel('a')
  first = [e for e in events if e.id == 'a']
  assert len(first) == 2 and first[1].tokens == []
  assert done['a'].finish_reason == 'cancelled' == done['w'].finish_reason
  assert done['a'].tokens == done['b'].tokens[: len(done['a'].tokens)] != []
  assert done['w'].tokens == [] and done['w'].accepted == []
  assert done['good'].tokens == good and len(done['b'].tokens) == 40


def test_a_cancelled_slot_is_used_again(decoder, good):
  """More endless requests than slots, all cancelled: the last one gets in."""
  endless = [
    Request(prompt=[1, 2, 3], max_new_tokens=107, stop_ids=(), id=i)
    for i in range(5)
  ]
  serving, order = serve(decoder, [*endless, GOOD]), []
  for event in serving:
    if event.result is None and event.id != 'good':
      serving.cancel(event.id)
    order.append((event.id, event.result is not None))
  assert all(order.index((i, False)) < order.index((i, True)) for i in range(5))
  assert order[-1] == ('good', True)


def test_a_source_is_read_as_far_as_there_is_room(decoder):
  for queue in (0, 3):
    count = collections.Counter()

    def source(count=count, queue=queue):
      for i in range(12):
        count['taken'] += 1
        assert count['taken'] - count['ended'] <= 2 + queue
        yield Request(prompt=[1 + i % 9], max_new_tokens=3 + i, stop_ids=())

    for event in serve(decoder, source(), queue=queue):
      count['ended'] += event.result is not None
    assert count == {'taken': 12, 'ended': 12}


def test_a_source_that_raises(decoder, good):
  """What it gave is served to the end, then its error comes."""

  def source():
    yield GOOD
    yield Request(prompt=[1], max_new_tokens=3, stop_ids=())
    raise OSError('socket closed')

  serving, events = serve(decoder, source()), []
  with pytest.raises(OSError, match='socket closed'):
    events.extend(serving)  # keeps what came before
  done = results(events)
  assert done['good'].tokens == good and len(done) == 2
  assert list(serving) == []


def test_a_source_with_nothing_yet(decoder, good):
  """None is no request: the running go on, and later ones get in."""
  items = iter([None, None, GOOD, None, [3, 9], None, None])
  done = results(serve(decoder, items))
  assert done.keys() == {'good', 1} and done['good'].tokens == good


def test_a_prompt_that_the_device_refuses(decoder, good, monkeypatch):
  real = engine_lib.prefill

  def prefill(method, params, token_BT, *args, **options):
    if token_BT[0, 0] == 7:
      raise RuntimeError('out of memory')
    return real(method, params, token_BT, *args, **options)

  monkeypatch.setattr(engine_lib, 'prefill', prefill)
  done = results(serve(decoder, [[7, 1], GOOD, [7], [7]]))
  assert done['good'].tokens == good
  assert [done[i].error for i in (0, 2, 3)] == [
    'RuntimeError: out of memory'
  ] * 3
  assert done[0].prompt_tokens == 2


def test_stop_strings(decoder, good):
  """A text ends before the string, also where two looks share it."""
  text = bytes(good).decode()
  for at in range(1, 9):
    stop = text[at : at + 2]
    want = decoder.generate(
      [3, 9], max_new_tokens=12, stop_ids=(), stop=stop, logprobs=True
    )
    request = {'prompt': [3, 9], 'max_new_tokens': 12, 'stop_ids': ()}
    events = list(
      serve(decoder, [request | {'stop': stop}], chunk=1, logprobs=True)
    )
    event = events[-1]
    assert event.result.tokens == want.tokens[0]
    assert streamed(events) == want.tokens[0]
    assert event.result.text == want.text[0]
    assert event.result.finish_reason == want.finish_reason[0]
    assert event.result.accepted == want.accepted[0]
    assert len(event.result.logprobs) == len(want.tokens[0])


def test_end_ids_are_the_checkpoints(decoder):
  """None takes them, as `generate` does; () takes none."""
  want = decoder.generate([1, 2, 3], max_new_tokens=50)
  (result,) = results(
    serve(decoder, [{'prompt': [1, 2, 3], 'max_new_tokens': 50}])
  ).values()
  assert result.tokens == want.tokens[0]


def test_nothing_is_compiled_twice(decoder, caplog):
  """A warm engine: other lengths, laws, caps, ids, slots and another call."""

  def requests():
    for i in range(14):
      yield Request(
        prompt=[1 + i % 9] * (1 + 3 * i % 40),
        max_new_tokens=1 + i % 7,
        temperature=i % 3 * 0.5,
        top_k=i % 2 * 3,
        seed=i,
        stop_ids=range(i % 5),
      )
    yield []

  def run(number):
    serving = serve(decoder, requests(), logprobs=True)
    for i, event in enumerate(serving):
      if i % 7 == number:
        serving.cancel(event.id)

  run(5)
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    jax.jit(lambda x: x + 1)(1.0)
    assert 'Compiling' in caplog.text, 'the log says nothing: no power'
    caplog.clear()
    run(3)
  assert [r.message for r in caplog.records if 'Compiling' in r.message] == []


@pytest.mark.parametrize(
  ('options', 'says'),
  [
    ({'slots': 0}, 'slots is 0'),
    ({'chunk': 0}, 'chunk is 0'),
    ({'queue': -1}, 'queue is -1'),
    ({'context': 1}, 'context is 1'),
    ({'context': 4000}, '4000; this target has 1024'),
  ],
)
def test_bad_settings_are_refused_before_any_work(decoder, options, says):
  with pytest.raises(ValueError, match=says):
    serve(decoder, [GOOD], **options)


@pytest.mark.parametrize('requests', ['text', GOOD, {'prompt': 'x'}, 5])
def test_one_request_is_no_iterable_of_them(decoder, requests):
  with pytest.raises(ValueError, match='give an iterable'):
    serve(decoder, requests)


def test_slots_are_checked_before_weights_are_read():
  with pytest.raises(ValueError, match="slots is 'many'"):
    specjax.load(slots='many')
