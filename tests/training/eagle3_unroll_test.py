"""EAGLE-3's unroll in training against its drafter in decoding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import packed_fixture as px
import pytest
from eagle3_fixture import V
from eagle3_training_fixture import (
  STEPS,
  TARGET_WEIGHTS,
  T,
  batch,
  case,
  spans,
)

from specjax.models import transformer, whole_text
from specjax.training import teacher
from specjax.training.objectives import eagle3
from specjax.types import Ask

pytestmark = pytest.mark.usefixtures('quick_compiles')


@functools.partial(jax.jit, static_argnums=0)
def trained(objective, params, texts, taps_BTE):
  """float32[B, T, S, V]: laws of the unroll, zero for what is not drafted."""
  drafter = objective.drafter
  states = eagle3.unroll(
    drafter.settings, params, TARGET_WEIGHTS, texts, taps_BTE, STEPS
  )
  head = drafter.head(params, TARGET_WEIGHTS)
  logq_BTSV = jax.nn.log_softmax(jnp.stack(states, axis=2) @ head.rows_VD.T)
  ids = jnp.arange(V) if head.id_V is None else head.id_V
  return jnp.zeros((*logq_BTSV.shape[:3], V)).at[..., ids].set(logq_BTSV)


@pytest.mark.parametrize(
  ('changes', 'switches'),
  [
    ({}, {}),
    ({'norm_before_residual': True, 'fc_norm': True}, {}),
    ({'norm_output': True, 'num_hidden_layers': 2}, {}),
    ({'draft_arch': 'qwen3', 'draft_vocab_size': None}, {}),
  ],
  ids=str,
)
def test_every_step_is_a_depth_of_decoding(changes, switches):
  """Step i of row t against the drafter at depth i below the root t + 1.

  Catches a step whose token, rotation or own earlier rows are off by one, rows
  of true features behind t that are seen or before it that are not, a recycled
  vector in another norm, features fused twice, and texts that see another.
  """
  objective, params = case(changes, switches)
  texts, drafter = batch(), objective.drafter
  view = teacher.read(TARGET_WEIGHTS, texts, drafter.taps)
  got_BTSV = trained(objective, params, texts, view.taps_BTE)
  root_B, compared = np.arange(1, 11), 0  # one shape, and one program, for all
  for b, at in spans(texts):
    n = at.stop - at.start
    alone = np.pad(texts.token_BT[b, at], (0, T - n), constant_values=5)
    tiled = lambda x: jnp.asarray(np.tile(x, (len(root_B), *[1] * x.ndim)))
    cut_TE = transformer.read(
      TARGET_WEIGHTS, jnp.asarray(alone)[None], taps=drafter.taps
    ).taps_BTE[0]
    want_BSV = px.decoded(
      *(drafter, params, TARGET_WEIGHTS),
      *(tiled(alone), jnp.asarray(root_B), tiled(cut_TE)),
      ask=Ask(depth=STEPS, fanout=drafter.settings.draft_vocab),
      vocab=V,
    )
    for root, want_SV in zip(root_B[: n - 1], want_BSV, strict=False):
      live = min(STEPS, n - root)  # tokens of this text to go on with
      got_SV = got_BTSV[b, at.start + root - 1]
      np.testing.assert_allclose(got_SV[:live], want_SV[:live], atol=1e-4)
      compared += live
  assert compared > 50


def test_lots_of_queries_change_nothing(monkeypatch):
  """Catches rows of another lot that are lost, or own ones of another lot."""
  objective, params = case()
  texts, drafter = batch(), objective.drafter
  view = teacher.read(TARGET_WEIGHTS, texts, drafter.taps)
  want = trained(objective, params, texts, view.taps_BTE)
  monkeypatch.setattr(whole_text, 'LOT', 5)
  jax.clear_caches()  # or the program made above would run again
  got = trained(objective, params, texts, view.taps_BTE)
  jax.clear_caches()
  np.testing.assert_allclose(got, want, atol=1e-5)
