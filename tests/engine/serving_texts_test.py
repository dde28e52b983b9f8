"""Requests through slots: each text is the one it has alone.

Faults these catch: a drafter's state or cache rows left of a slot's last
request (texts stay right, acceptance falls: walks are compared too), a key that
follows the slot and not the request, a leaf of a state put on the wrong axis, a
window of new tokens that loses or repeats one.
"""

import itertools

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax import filtering
from specjax.decode.prefill import prefill
from specjax.decoder import Decoder
from specjax.engine import slots as slots_lib
from specjax.engine.requests import Request
from specjax.engine.slots import Plan
from specjax.models import cache as kv
from specjax.types import Sampling

pytestmark = pytest.mark.usefixtures('quick_compiles')

CONTEXT = 60
STOP = 13
METHODS = (
  'ar',
  'ddtree',
  'eagle3',
  'draft_model+evospec',
  'dflash+rejection',
)


def ask(count=9, **changes) -> list[Request]:
  """Prompts, caps and laws of all sorts; greedy and sampled rows mixed."""
  laws = (
    {'temperature': 0.0},
    {'temperature': 1.0, 'top_k': 5, 'top_p': 0.9},
    {'temperature': 0.7, 'min_p': 0.02},
  )
  kinds = zip(
    itertools.cycle(fx.PROMPTS), itertools.cycle((24, 7, 1, 18)), strict=False
  )
  return [
    Request(
      prompt=prompt,
      seed=100 + i,
      stop_ids=(STOP,),
      **{'max_new_tokens': new} | laws[(i // 2) % 3] | changes,
    )
    for i, (prompt, new) in enumerate(itertools.islice(kinds, count))
  ]


def alone(decoder, requests):
  """What `generate` says of each, one row at a time."""
  each = lambda name: [getattr(r, name) for r in requests]
  names = 'max_new_tokens', 'temperature', 'top_k', 'top_p', 'min_p', 'seed'
  return decoder.generate(
    each('prompt'),
    stop_ids=(STOP,),
    batch_size=1,
    logprobs=True,
    **{name: each(name) for name in names},
  )


def answers(events) -> dict:
  """Results by id; the pieces that were streamed make them up."""
  pieces, results = {}, {}
  for event in events:
    assert event.id not in results, 'news of a request that has ended'
    pieces.setdefault(event.id, []).extend(event.tokens)
    if event.result is not None:
      results[event.id] = event.result
  assert pieces.keys() == results.keys()
  for id, result in results.items():
    assert pieces[id] == result.tokens
  return results


@pytest.fixture(scope='module', params=METHODS)
def decoder(request):
  case = fx.make_case(request.param)
  return Decoder(method=case.method, params=case.params)


def spoiled(state, slots):
  """Every float of these slots is NaN."""

  def spoil(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    axis = 1 if x.ndim == 5 else 0
    at_B = np.isin(np.arange(x.shape[axis]), slots)
    shape = [1] * x.ndim
    shape[axis] = -1
    return jnp.where(at_B.reshape(shape), jnp.nan, x)

  return state.replace(
    cache=jax.tree.map(spoil, state.cache),
    draft=jax.tree.map(spoil, state.draft),
  )


def test_texts_are_those_of_a_batch_of_one(decoder):
  """Three slots, nine requests; free slots hold NaN all the time.

  What a slot still held of its last request, and anything that leaks from a
  row into another, would be NaN too.
  """
  requests = ask()
  want = alone(decoder, requests)
  serving = decoder.serve(
    requests, slots=3, context=CONTEXT, chunk=3, logprobs=True
  )

  def events():
    for event in serving:
      free = [i for i in range(3) if i not in serving._running]
      serving._state = spoiled(serving._state, free)
      yield event

  got = answers(events())
  assert sorted(got) == list(range(len(requests)))
  for i, result in got.items():
    assert result.tokens == want.tokens[i], i
    assert result.accepted == want.accepted[i], i
    assert result.finish_reason == want.finish_reason[i], i
    assert result.prompt_tokens == want.prompt_tokens[i]
    np.testing.assert_allclose(
      result.logprobs, want.logprobs[i], rtol=1e-4, atol=1e-5
    )
  assert {r.finish_reason for r in got.values()} == {'stop', 'length'}


def test_a_stale_drafter_would_be_seen(monkeypatch):
  """The test above has power: texts do not tell, walks do."""
  case = fx.make_case('draft_model+follow')
  decoder = Decoder(method=case.method, params=case.params)
  requests = ask(6, temperature=0.0, max_new_tokens=16)
  want = alone(decoder, requests)
  real = slots_lib.insert

  def stale(state, row, slot):
    draft = jax.tree.map(jnp.copy, state.draft)
    return real(state, row, slot).replace(draft=draft)

  monkeypatch.setattr(slots_lib, 'insert', stale)
  got = answers(decoder.serve(requests, slots=2, context=CONTEXT))
  assert [got[i].tokens for i in range(6)] == want.tokens
  assert [got[i].accepted for i in range(6)] != want.accepted


@pytest.fixture(scope='module')
def ddtree():
  case = fx.make_case('ddtree')
  return Decoder(method=case.method, params=case.params, slots=1)


def test_one_slot(ddtree):
  """No leaf tells its batch axis by its shape; all are replaced."""
  requests = ask(4, temperature=0.0)
  want = alone(ddtree, requests)
  got = answers(ddtree.serve(requests, context=CONTEXT, chunk=5))
  assert [got[i].tokens for i in range(4)] == want.tokens
  assert [got[i].accepted for i in range(4)] == want.accepted


def test_greedy_only(ddtree):
  """No noise in the program, the same texts; who samples is refused."""
  requests = ask(5, temperature=0.0)
  want = alone(ddtree, requests)
  hot = Request(prompt=[1], temperature=0.5, max_new_tokens=3, id='hot')
  got = answers(
    ddtree.serve([*requests, hot], slots=2, context=CONTEXT, greedy_only=True)
  )
  assert 'greedy_only' in got.pop('hot').error
  assert [got[i].tokens for i in range(5)] == want.tokens


@pytest.mark.parametrize('name', fx.case_names())
def test_every_leaf_has_one_batch_axis(name):
  """Of every method's state, in shapes alone: caches 1, others 0."""
  case = fx.make_case(name)
  plan = Plan(
    slots=3, context=CONTEXT, chunk=2, queue=0, greedy_only=False, logprobs=True
  )
  many = jax.eval_shape(
    lambda params: slots_lib.empty(case.method, params, plan=plan), case.params
  )
  rows = fx.rows_of(fx.PROMPTS[:1])
  one = jax.eval_shape(
    lambda params: prefill(
      case.method,
      params,
      *plan.arrays(rows, 32),
      capacity=plan.capacity(case.method),
      logprobs=True,
    ),
    case.params,
  )
  axis = lambda x, y: slots_lib.batch_axis(x.shape, y.shape)
  is_cache = lambda x: isinstance(x, kv.KVCache)
  # Fails where the two are not of one structure, static facts included.
  jax.tree.map(
    lambda x, y: jax.tree.map(
      lambda a, b: np.testing.assert_equal(axis(a, b), int(is_cache(x))), x, y
    ),
    many,
    one,
    is_leaf=is_cache,
  )
  assert jax.tree.map(lambda x: x.dtype, many) == jax.tree.map(
    lambda x: x.dtype, one
  )


def test_a_state_common_to_all_rows_is_refused():
  with pytest.raises(ValueError, match='belongs in params'):
    slots_lib.batch_axis((7, 5), (7, 5))
  with pytest.raises(ValueError, match='belongs in params'):
    slots_lib.batch_axis((3, 3), (1, 1))


def test_a_neighbours_law_changes_no_cut():
  """A flat law sends top-p to bisection; the rows beside it stay as they were.

  p stands at a rounding of each row's sums, where the two ways differ: catches
  a way that is chosen for the whole batch.
  """
  scale_B11 = jnp.linspace(1.0, 3.0, 200)[:, None, None]
  w_BNV = scale_B11 * jax.random.normal(jax.random.key(0), (200, 1, 600))
  best_BV = jnp.sort(jax.nn.softmax(w_BNV[:, 0], axis=-1), axis=-1)[:, ::-1]
  p_B = jnp.cumsum(best_BV, axis=-1)[:, 30]

  def cut(w_BNV, p_B):
    none_B = jnp.zeros(p_B.shape)
    law = Sampling(
      temperature_B=none_B + 1,
      top_k_B=none_B.astype(jnp.int32),
      top_p_B=p_B,
      min_p_B=none_B,
    )
    return filtering.cut(w_BNV, law)

  want_BNV = cut(w_BNV, p_B)
  flat_BNV = jnp.concatenate([w_BNV, jnp.zeros((1, 1, 600))])
  got_BNV = cut(flat_BNV, jnp.append(p_B, 0.9))
  np.testing.assert_array_equal(got_BNV[:-1], want_BNV)
  no_k_B11 = jnp.zeros((200, 1, 1), jnp.int32)
  other_B11 = filtering._by_bisection(w_BNV, no_k_B11, p_B[:, None, None])
  same_BNV = (w_BNV >= other_B11) == jnp.isfinite(want_BNV)
  assert not same_BNV.all(), 'both ways agree everywhere: no power'
