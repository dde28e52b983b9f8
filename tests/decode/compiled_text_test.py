"""What XLA made of the loop: no copy of a cache, state donated, no host."""

import re

import jax
import jax.numpy as jnp
import methods_fixture as fx
import pytest
from compiled_fixture import whole_moves
from jax import lax

from specjax.decode.loop import decode
from specjax.models import transformer
from specjax.models.cache import KVCache

pytestmark = pytest.mark.usefixtures('quick_compiles')


def host_contacts(text: str) -> list[str]:
  """Instructions anywhere in the program that talk to the host."""
  wanted = r'custom_call_target="[^"]*(callback|python)|(in|out)feed\(|send\('
  return [x for x in text.splitlines() if re.search(wanted, x)]


def cache_shapes(state) -> set[str]:
  """The target's cache and those a drafter keeps."""
  is_cache = lambda x: isinstance(x, KVCache)
  leaves = jax.tree.leaves((state.cache, state.draft), is_leaf=is_cache)
  return {
    f'f32[{",".join(map(str, x.k_LBKSH.shape))}]' for x in leaves if is_cache(x)
  }


# Each layout and batch with the two methods that need no weights, one of the
# rest: unstacked layers are where copies have been seen.
COMBINATIONS = [
  (name, stacked, batch)
  for name in fx.method_names()
  for stacked in (True, False)
  for batch in (1, 3)
  if name in ('ar', 'lookup') or (not stacked and batch == 3)
]


class TestDecode:
  @pytest.mark.parametrize(('name', 'stacked', 'batch'), COMBINATIONS)
  def test_nothing_large_moves(self, name, stacked, batch):
    """Fails if a round copies a cache: that costs more than a small model.

    It does when XLA cannot see that all reads come before the write, or when
    the state is not donated. Fails on a host callback as well.
    """
    case = fx.make_case(name)
    weights = transformer.restack(fx.WEIGHTS, stacked)
    params = case.params.replace(target=weights)
    case = fx.Case(case.method, params)
    state = fx.start(case, fx.rows_of().part(0, batch))
    shapes = cache_shapes(state)
    compiled = decode.lower(case.method, case.params, state).compile()
    text = compiled.as_text()
    for shape in shapes:
      assert shape in text
      assert whole_moves(text, shape) == []
    header = text.splitlines()[0]
    aliases = re.findall(r'\{\d*\}: \(\d+, \{\}, \w+-alias\)', header)
    assert len(aliases) == len(jax.tree.leaves(state))
    assert host_contacts(text) == []


class TestPower:
  """The search finds what it is for, in the smallest loops that have it."""

  def _text(self, step):
    def run(x_SH):
      more = lambda carry: carry[0] < carry[1][0, 0]
      return lax.while_loop(more, step, (jnp.float32(0), x_SH))

    return jax.jit(run, donate_argnums=0).lower(jnp.ones((256, 12))).compile()

  def test_finds_a_copy(self):
    def step(carry):
      count, x_SH = carry
      new_SH = lax.dynamic_update_slice(x_SH, x_SH[:1] + 1, (5, 0))
      # Read after the write, yet of the time before it.
      return count + jnp.sum(jnp.sort(x_SH, axis=0)[5] * new_SH[6]), new_SH

    found = whole_moves(self._text(step).as_text(), 'f32[256,12]')
    assert any('copy' in line or 'sort' in line for line in found)

  def test_finds_a_rewrite_and_lets_an_update_pass(self):
    rewrite = lambda carry: (carry[0] + 1, carry[1] * 2)
    update = lambda carry: (
      carry[0] + 1,
      lax.dynamic_update_slice(carry[1], carry[1][:1] * 2, (5, 0)),
    )
    assert whole_moves(self._text(rewrite).as_text(), 'f32[256,12]')
    assert not whole_moves(self._text(update).as_text(), 'f32[256,12]')

  def test_finds_a_callback(self):
    def step(carry):
      jax.debug.callback(lambda x: None, carry[0])
      return carry[0] + 1, carry[1]

    assert host_contacts(self._text(step).as_text())
