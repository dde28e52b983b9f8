"""The two ways papers number the hidden states they read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import config, transformer


def test_an_input_is_the_output_before():
  """EAGLE-3 counts what enters a layer, DFlash what leaves it."""
  sizes = config.tiny(layers=4)
  real = transformer.init(sizes, jax.random.key(1), scale=0.3)
  inputs = _taps(real, transformer.layer_inputs((0, 1, 3)))
  outputs = _taps(real, (-1, 0, 2))
  np.testing.assert_array_equal(inputs, outputs)
  assert not np.allclose(inputs, _taps(real, (0, 1, 3)))


@pytest.mark.parametrize('taps', [(4,), (-2,), (1, 1)])
def test_taps_that_do_not_fit(taps):
  with pytest.raises(ValueError, match='each once'):
    transformer.check_taps(taps, 4)


def _taps(weights, taps):
  out = transformer.read(weights, jnp.arange(3)[None], taps=taps)
  return np.asarray(out.taps_BTE)
