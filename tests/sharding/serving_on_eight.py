"""Run by devices_test: requests through slots that lie on several devices."""

import jax
import mesh_fixture as fx
import pytest
from byte_lm_fixture import load

import specjax
from specjax import sharding
from specjax.decode.loop import decode
from specjax.engine import slots as slots_lib

pytestmark = pytest.mark.usefixtures('quick_compiles')

REQUESTS = [
  specjax.Request(
    prompt=prompt, max_new_tokens=new, seed=i, temperature=i % 2, stop_ids=()
  )
  for i, (prompt, new) in enumerate(
    zip(fx.PROMPTS * 2, (14, 3, 9, 1, 12, 6), strict=True)
  )
]


def results(decoder):
  events = decoder.serve(REQUESTS, slots=4, context=64, chunk=3)
  return {e.id: e.result for e in events if e.result is not None}


class TestServing:
  @pytest.mark.parametrize(
    ('mesh', 'name', 'method'),
    [((2, 4), 'even', 'dflash'), ((4, 1, 2), 'moe', 'ar')],
  )
  def test_texts_and_no_new_programs(self, mesh, name, method):
    """A row may end on any shard, and another begins there."""
    one = fx.decoder(fx.CONFIGS[name], method)
    many = fx.on(sharding.make_mesh(*mesh), one)
    want, got = results(one), results(many)
    tell = lambda found: {
      id: (r.tokens, r.accepted, r.error) for id, r in found.items()
    }
    assert tell(got) == tell(want)
    programs = (decode, slots_lib.insert, slots_lib.look)
    made = [p._cache_size() for p in programs]
    results(many)
    assert [p._cache_size() for p in programs] == made

  def test_slots_are_split_evenly(self):
    many = fx.on(
      sharding.make_mesh(data=4), fx.decoder(fx.CONFIGS['even'], 'ar')
    )
    with pytest.raises(ValueError, match=r'6 slots .* data=4 .* multiple of 4'):
      many.serve(REQUESTS, slots=6)


class TestStopStrings:
  def test_chunks_hand_a_state_on(self):
    """A loop's state fits the program it came from."""
    settings = {'max_new_tokens': 48, 'stop_ids': (), 'stop': ['.', '\n\n']}
    prompts = ['Two trains leave.\n', 'Tom has 3 pens. ', 'A cat']
    want = load('dflash').generate(prompts, **settings)
    got = load('dflash', mesh=sharding.make_mesh(2, 2)).generate(
      prompts, **settings
    )
    assert got.text == want.text
    assert got.finish_reason == want.finish_reason


class TestState:
  def test_every_row_and_head_is_where_it_is_said(self):
    """Of the first state as of the last: no program changes the layout."""
    one = fx.decoder(fx.CONFIGS['even'], 'dflash')
    many = fx.on(sharding.make_mesh(2, 4), one)
    plan = specjax.engine.slots.Plan(
      slots=4,
      context=64,
      chunk=2,
      queue=0,
      greedy_only=True,
      logprobs=False,
    )
    with many.on_mesh():
      state = slots_lib.empty(many.method, many.params, plan=plan)
    before = jax.tree.map(lambda x: x.sharding, state)
    assert state.cache.k_LBKSH.addressable_shards[0].data.shape[1:3] == (2, 2)
    with many.on_mesh():
      state, _ = decode(many.method, many.params, state, max_rounds=2)
    same = jax.tree.map(
      lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), state, before
    )
    assert all(jax.tree.leaves(same))
