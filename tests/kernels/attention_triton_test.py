"""Tree attention for Triton, interpreted: indices, masks, lengths, the merge.

It says nothing of what a device does, see tests/aot.
"""

import functools

import attention_fixture as cases
import jax
import pytest

from pallas_kernels.tree_attention.tiles import Tiles
from pallas_kernels.tree_attention.triton import tree_attention_triton

CASES = cases.cover()
QUICK = 10
pytestmark = pytest.mark.usefixtures('quick_compiles')


def interpreted(*args, scale, splits=2):
  run = functools.partial(
    tree_attention_triton,
    scale=scale,
    tiles=Tiles(rows=16, slots=64, splits=splits),
    interpret=True,
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

  @pytest.mark.parametrize('splits', [1, 5])
  def test_more_or_fewer_splits_than_tiles(self, splits):
    case = cases.Case(7, 64, 4, 'float32', 'ragged', 'tree')
    cases.check(case, functools.partial(interpreted, splits=splits))


def test_what_dead_slots_hold_changes_no_bit():
  cases.check_dead_slots(interpreted)
