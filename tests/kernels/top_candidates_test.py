"""Top candidates: the kernels, interpreted, against the plain reference.

Interpreting says nothing of what a device does, see tests/aot.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.top_candidates import best_list, tpu, triton
from pallas_kernels.top_candidates.xla import top_candidates_xla

# Vocabularies that are no multiple of a tile, and widths likewise.
CASES = [
  # rows, width, vocabulary, count, dtype
  (1, 64, 300, 1, 'bfloat16'),
  (5, 48, 500, 7, 'float32'),
  (17, 80, 1000, 64, 'bfloat16'),
  (3, 32, 40, 40, 'float32'),
]
BACKENDS = {
  'triton': functools.partial(
    triton.top_candidates_triton,
    tiles=triton.Tiles(rows=16, tokens=64, width=32, spans=3),
    interpret=True,
  ),
  'tpu': functools.partial(tpu.top_candidates_tpu, tokens=128, interpret=True),
}
pytestmark = pytest.mark.usefixtures('quick_compiles')


def arrays(rows, width, vocab, dtype):
  rng = np.random.default_rng(vocab)
  as_given = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)
  return as_given(1, rows, width), as_given(vocab, width)


def run(backend, *args, count):
  return jax.jit(functools.partial(BACKENDS[backend], count=count))(*args)


def check(got, want):
  np.testing.assert_array_equal(np.asarray(got[0]), np.asarray(want[0]))
  np.testing.assert_allclose(
    np.asarray(got[1]), np.asarray(want[1]), rtol=0, atol=1e-4
  )


def test_empty_places_differ():
  """Places of one column would take the same token together."""
  _, columns = best_list.empty(1, triton.MOST, triton.MOST)
  assert len(set(np.asarray(columns)[0].tolist())) == triton.MOST


@pytest.mark.parametrize('backend', BACKENDS)
class TestAgainstTheReference:
  @pytest.mark.parametrize(('rows', 'width', 'vocab', 'count', 'dtype'), CASES)
  def test_tokens_and_probabilities(
    self, backend, rows, width, vocab, count, dtype
  ):
    args = arrays(rows, width, vocab, dtype)
    exact = [x.astype('float32') for x in args]
    want = top_candidates_xla(*exact, count=count)
    check(run(backend, *args, count=count), want)

  def test_equal_logits_stand_in_order_of_id(self, backend):
    """Many of them, in every tile: a few values and a head that repeats."""
    hidden_BWD, head_VD = arrays(4, 32, 7, 'float32')
    head_VD = jnp.tile(head_VD, (60, 1))
    want = top_candidates_xla(hidden_BWD, head_VD, count=16)
    assert len(set(np.asarray(want[1])[0, 0].tolist())) == 1
    token, logq = run(backend, hidden_BWD, head_VD, count=16)
    np.testing.assert_array_equal(np.asarray(token), np.asarray(want[0]))
    np.testing.assert_allclose(logq, want[1], rtol=0, atol=1e-4)


class TestMemory:
  def test_as_a_tpu_has_it(self):
    """Scratch begins as NaN."""
    args = arrays(5, 64, 300, 'float32')
    memory = pltpu.InterpretParams(uninitialized_memory='nan')
    got = jax.jit(
      functools.partial(
        tpu.top_candidates_tpu, count=8, tokens=128, interpret=memory
      )
    )(*args)
    check(got, top_candidates_xla(*args, count=8))


class TestRefusals:
  @pytest.mark.parametrize('module', [triton, tpu])
  def test_what_cannot_be_done_has_a_reason(self, module):
    hidden_BWD, head_VD = arrays(1, 32, 300, 'float32')
    refuses = module.refuses
    assert refuses(hidden_BWD, head_VD, count=128) is None
    assert '129 candidates' in refuses(hidden_BWD, head_VD, count=129)
    other = head_VD.astype('bfloat16')
    assert 'bfloat16' in refuses(hidden_BWD, other, count=1)
