"""Tree attention for CPUs: tiles, lengths and the layer that is read."""

import functools

import attention_fixture as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_attention.api import tree_attention
from pallas_kernels.tree_attention.cpu import tree_attention_cpu

CASES = cases.cover()
QUICK = 12
pytestmark = pytest.mark.usefixtures('quick_compiles')

run = jax.jit(
  functools.partial(tree_attention, backend='cpu'), static_argnames=('scale',)
)


@pytest.mark.parametrize('case', CASES[:QUICK], ids=str)
def test_is_the_reference(case):
  cases.check(case, run)


@pytest.mark.sweep
@pytest.mark.parametrize('case', CASES[QUICK:], ids=str)
def test_the_rest(case):
  cases.check(case, run)


def test_what_dead_slots_hold_changes_no_bit():
  cases.check_dead_slots(run)


@pytest.mark.parametrize('slots', [1, 40, 64, 100, 192])
def test_any_capacity(slots):
  """Fewer than a tile, and no whole number of tiles."""
  case = cases.Case(7, 64, 3, 'float32', 'none', 'tree')
  q, *caches, _, k, v, mask = cases.arrays(case)
  caches = [jnp.nan_to_num(x[:, :, :slots], nan=0.5) for x in caches]
  length = jnp.asarray([slots, slots // 2], jnp.int32)
  args = (q, *caches, length, k, v, mask)
  want = tree_attention(*args, scale=0.1, backend='xla')
  np.testing.assert_allclose(run(*args, scale=0.1), want, atol=2e-5)


def test_another_sequences_length_changes_no_bit():
  """Tiles that only the longest has are nothing to the others."""
  case = cases.Case(7, 64, 3, 'float32', 'ragged', 'tree')
  q, ck, cv, _, k, v, mask = cases.arrays(case, dead=0.0)
  short, long = (
    run(q, ck, cv, jnp.asarray([37, n], jnp.int32), k, v, mask, scale=0.1)
    for n in (0, cases.SLOTS)
  )
  np.testing.assert_array_equal(short[0], long[0])
  assert (np.asarray(short[1]) != np.asarray(long[1])).any()


@pytest.mark.parametrize('backend', ['cpu', 'xla'])
def test_reads_the_layer_it_is_told(backend):
  case = cases.Case(7, 64, 3, 'float32', 'ragged', 'tree')
  q, ck, cv, *others = cases.arrays(case)
  stack = lambda x: jnp.stack([jnp.full_like(x, jnp.nan), x, x + 1])
  op = functools.partial(tree_attention, scale=0.1, backend=backend)
  want = op(q, ck, cv, *others)
  got = jax.jit(op)(q, stack(ck), stack(cv), *others, layer=1)
  np.testing.assert_allclose(got, want, atol=1e-6)
  other = op(q, stack(ck), stack(cv), *others, layer=2)
  assert np.abs(other - want).max() > 0.1


def test_slots_behind_the_longest_are_not_read():
  """Only the trip count of a loop can make it so: the program has one."""
  case = cases.Case(1, 64, 3, 'float32', 'one', 'alone')
  q, ck, cv, *others = cases.arrays(case)
  text = (
    jax.jit(functools.partial(tree_attention_cpu, scale=0.1))
    .lower(q, ck[None], cv[None], *others, jnp.int32(0))
    .as_text()
  )
  assert 'stablehlo.while' in text
  assert f'x{cases.SLOTS}x64xf32>, tensor' in text  # the caches, as arguments
  # And no product over all slots.
  products = [line for line in text.splitlines() if 'dot_general' in line]
  assert len(products) == 4
  assert not [line for line in products if f'{cases.SLOTS}' in line]
