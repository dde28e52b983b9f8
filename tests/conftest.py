"""Settings of every test: CPU numerics that a reference can be held to."""

import jax
import pytest

jax.config.update('jax_default_matmul_precision', 'highest')
jax.config.update('jax_numpy_rank_promotion', 'allow')


@pytest.fixture(scope='session')
def goldens():
  """The folder of recorded reference outputs."""
  import pathlib

  return pathlib.Path(__file__).parent / 'goldens'
