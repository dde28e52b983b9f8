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


@pytest.fixture(scope='module')
def quick_compiles():
  """For modules that compile many programs and run each a few times.

  XLA works less on code that stays the same program: half the time to build,
  and the same copies and donations.
  """
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)


@pytest.fixture(scope='module', autouse=True)
def bounded_memory():
  """Programs of all modules together would fill many gigabytes."""
  yield
  jax.clear_caches()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """What shares compiled programs runs in one process: a file, or a case."""
  from xdist.scheduler import LoadScopeScheduling

  class BySharedPrograms(LoadScopeScheduling):
    def _split_scope(self, nodeid):
      file, _, test = nodeid.partition('::')
      if 'TestConformance' not in test:
        return file
      return f'{file}-{test.partition("[")[2]}'

  return BySharedPrograms(config, log)
