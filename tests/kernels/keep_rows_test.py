"""Rows into the cache: the kernels, interpreted, bit for bit as the reference.

Interpreting says nothing of what a device does, see tests/aot.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.keep_rows import tpu, triton
from pallas_kernels.keep_rows.xla import keep_rows_xla

SLOTS = 128
MEMORY = pltpu.InterpretParams()
BACKENDS = {
  'triton': functools.partial(triton.keep_rows_triton, interpret=True),
  'tpu': functools.partial(tpu.keep_rows_tpu, interpret=MEMORY),
}
pytestmark = pytest.mark.usefixtures('quick_compiles')


def arrays(rows, width, dtype):
  rng = np.random.default_rng(rows)
  normal = lambda slots: jnp.asarray(
    rng.normal(size=(2, 3, 2, slots, width)), dtype
  )
  return normal(SLOTS), normal(rows)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize(
  ('rows', 'width', 'dtype', 'start'),
  [
    (1, 64, 'bfloat16', (0, 127, 31)),
    (17, 80, 'float32', (15, 16, 111)),
    (33, 128, 'bfloat16', (1, 95, 64)),
  ],
)
def test_rows_and_nothing_else_change(backend, rows, width, dtype, start):
  cache, new = arrays(rows, width, dtype)
  new = new.at[0, 0, 0, 0, 0].set(jnp.nan)  # garbage may be kept
  start_B = jnp.asarray(start, jnp.int32)
  want = np.asarray(keep_rows_xla(cache, new, start_B), np.float32)
  got = np.asarray(jax.jit(BACKENDS[backend])(cache, new, start_B), np.float32)
  np.testing.assert_array_equal(got, want)
  changed = want != np.asarray(cache, np.float32)
  assert changed.any(axis=(0, 2, 4)).sum() == rows * len(start)


def test_refusals_have_a_reason():
  large = jax.ShapeDtypeStruct((36, 8, 8, 2**15, 128), 'bfloat16')
  assert '2^31' in triton.refuses(large, None, None)
  cache, new = arrays(97, 64, 'float32')
  assert 'no multiple' in tpu.refuses(cache[..., :100, :], new, None)
  assert '97 rows' in tpu.refuses(cache, new, None)
  assert tpu.refuses(cache, new[..., :96, :], None) is None
