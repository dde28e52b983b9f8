"""Tree attention for Hopper, interpreted with plain forms of its products.

Threads, copies and barriers run as they stand; what only a Hopper has does not,
see `pallas_kernels/tree_attention/hopper.py` and tests/aot.
"""

import functools

import attention_fixture as cases
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pallas_kernels.tree_attention.hopper import Machine
from pallas_kernels.tree_attention.mosaic_gpu import tree_attention_mosaic_gpu
from pallas_kernels.tree_attention.tiles import Tiles

try:  # public from jax 0.12 on
  from jax.experimental.pallas.mosaic_gpu import InterpretGPUParams
except ImportError:
  from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

# 256 rows are four times the callbacks of 64, and 8 heads eight times.
CASES = cases.cover(dtype=('bfloat16',), t=(1, 2, 7, 16, 17, 33, 64, 65))
QUICK = 6


def machine(**interpret) -> Machine:
  dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
  return Machine(
    full=lambda shape, value: jnp.full(shape, value, jnp.float32),
    iota=functools.partial(lax.broadcasted_iota, jnp.int32),
    load_rows=lambda ref, index: ref[index],
    dot=lambda a, b_tile: dot(a, b_tile[...]),
    dot_t=lambda a_tile, b_tile: dot(a_tile[...], b_tile[...].T),
    interpret=InterpretGPUParams(**interpret),
  )


def interpreted(*args, scale, splits=2, **interpret):
  run = functools.partial(
    tree_attention_mosaic_gpu,
    scale=scale,
    tiles=Tiles(rows=64, slots=64, splits=splits, stages=2),
    machine=machine(**interpret),
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

  @pytest.mark.sweep
  def test_256_rows(self):
    cases.check(
      cases.Case(256, 64, 1, 'bfloat16', 'ragged', 'tree'), interpreted
    )

  def test_no_race(self):
    """Raises where a tile is read before it came, or overwritten too early."""
    case = cases.Case(7, 64, 1, 'bfloat16', 'full', 'tree')
    cases.check(
      case, functools.partial(interpreted, splits=1, detect_races=True)
    )


def test_what_dead_slots_hold_changes_no_bit():
  cases.check_dead_slots(interpreted)
