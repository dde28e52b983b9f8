"""Tree attention for TPUs, interpreted: indices, masks, lengths, the merge.

It says nothing of what a device does, see tests/aot.
"""

import functools

import attention_fixture as cases
import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tree_attention.tiles import Tiles
from pallas_kernels.tree_attention.tpu import tree_attention_tpu

CASES = cases.cover()
QUICK = 10
pytestmark = pytest.mark.usefixtures('quick_compiles')


def interpreted(*args, scale, interpret=True):
  run = functools.partial(
    tree_attention_tpu,
    scale=scale,
    tiles=Tiles(rows=16, slots=64, splits=1),
    interpret=interpret,
  )
  return jax.jit(run)(*args)


class TestAgainstTheReference:
  def test_the_cover_is_small(self):
    assert QUICK < len(CASES) <= 60

  @pytest.mark.parametrize('case', CASES[:QUICK], ids=str)
  def test_quick(self, case):
    cases.check(case, interpreted)

  @pytest.mark.sweep
  @pytest.mark.parametrize('case', CASES[QUICK:], ids=str)
  def test_the_rest(self, case):
    cases.check(case, interpreted)

  def test_memory_as_a_tpu_has_it(self):
    """Copies and semaphores are modelled, and scratch begins as NaN."""
    case = cases.Case(7, 64, 4, 'float32', 'ragged', 'tree')
    memory = pltpu.InterpretParams(uninitialized_memory='nan')
    cases.check(case, functools.partial(interpreted, interpret=memory))


def test_what_dead_slots_hold_changes_no_bit():
  cases.check_dead_slots(interpreted)
