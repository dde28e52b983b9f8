"""Checks of kernels on a device: what is wrong must be seen.

What is right is in the tiny run of tests/experiments/gpu_check_test.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gpu import kernel_cases, kernels
from pallas_kernels.keep_rows.xla import keep_rows_xla
from pallas_kernels.top_candidates.xla import top_candidates_xla
from pallas_kernels.tree_attention import api as attention_api
from pallas_kernels.tree_attention.xla import tree_attention_xla

TINY = kernel_cases.TINY
pytestmark = pytest.mark.usefixtures('quick_compiles')


def test_attention_that_reads_dead_slots():
  def form(q, k, v, length_B, *new, scale):
    return tree_attention_xla(q, k, v, length_B + 1, *new, scale=scale)

  facts = kernel_cases.attention(TINY, 1, 5, 'tree', form)
  assert not facts['ok'] and facts['why'] == 'is not the reference'


def test_candidates_of_another_order():
  def form(hidden, head, count):
    token, logq = top_candidates_xla(hidden, head, count=count)
    return token[..., ::-1], logq

  assert not kernel_cases.candidates(TINY, 1, 3, 4, form)['ok']


def test_rows_in_another_slot():
  form = lambda cache, rows, start: keep_rows_xla(cache, rows, start - 1)
  facts = kernel_cases.keep(TINY, 1, form)
  assert (facts['ok'], facts['why']) == (False, 'wrote something else')


def test_runs_that_differ():
  count = iter(range(9))

  def form(*args):
    said = jax.ShapeDtypeStruct((), 'float32')
    noise = jax.pure_callback(lambda: np.float32(next(count)), said)
    return jnp.nan_to_num(keep_rows_xla(*args)) + noise.astype('bfloat16')

  facts = kernel_cases.keep(TINY, 1, form)
  assert (facts['ok'], facts['same_bits']) == (False, False)


def test_without():
  names = lambda: [b.name for b in attention_api.BACKENDS]
  before = names()
  with kernels.without(['tree_attention/triton']):
    assert 'triton' not in names() and 'xla' in names()
  assert names() == before
