"""EAGLE-3 reads prompts through the real prefill: chunks of 256, ragged rows.

A row that a chunk's border loses or doubles changes no text, only acceptance.
"""

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.drafters.eagle3 import network
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.tree_ops import causal

pytestmark = pytest.mark.usefixtures('quick_compiles')

# Shorter than, equal to and longer than chunks of 256, and of several.
LENGTHS = (1, 2, 255, 256, 257, 300, 512, 513)
CASE = fx.make_case('eagle3')


@pytest.fixture(scope='module')
def prompts():
  draw = np.random.default_rng(5)
  return [draw.integers(0, fx.CONFIG.vocab, n).tolist() for n in LENGTHS]


@pytest.fixture(scope='module')
def state(prompts):
  """All prompts in one ragged batch."""
  return fx.start(CASE, fx.rows_of(prompts, new=4))


@jax.jit
def in_one_pass(token_1T):
  """Keys, values and features of a whole text, without chunk or cache."""
  t = token_1T.shape[1]
  position_1T = jnp.arange(t)[None]
  none = jnp.zeros(1, jnp.int32)
  drafter = CASE.method.drafter
  out = transformer.read(fx.WEIGHTS, token_1T, taps=drafter.taps)
  settings, params = drafter.settings, CASE.params.drafter
  read = network.read(
    settings,
    params,
    fx.WEIGHTS,
    network.fuse(settings, params, out.taps_BTE),
    jnp.roll(token_1T, -1, axis=1),
    position_1T,
    kv.empty(settings.config, 1, 1, fx.WEIGHTS.dtype),
    none,
    causal(1, t),
  )
  return read.rows, out.taps_BTE[0]


@pytest.mark.parametrize('i', range(len(LENGTHS)), ids=map(str, LENGTHS))
def test_rows_are_those_of_one_pass(state, prompts, i):
  """Every row but the last token's, at its slot; its feature waits."""
  rows, taps_TE = in_one_pass(
    jnp.asarray([prompts[i] + [0] * (520 - LENGTHS[i])])
  )
  done = LENGTHS[i] - 1  # the last token's successor is not known yet
  for got, want in (
    (state.draft.cache.k_LBKSH, rows.k_LBKSH),
    (state.draft.cache.v_LBKSH, rows.v_LBKSH),
  ):
    np.testing.assert_allclose(
      got[:, i, :, :done], want[:, 0, :, :done], atol=2e-4
    )
  np.testing.assert_allclose(
    state.draft.pending_BRE[i, 0], taps_TE[done], atol=2e-4
  )
  assert state.draft.count_B[i] == 1
