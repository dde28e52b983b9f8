"""The coupled loss, held against the coupled drafts of decoding."""

import dataclasses

import blocks_fixture as bx
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax import sampling
from specjax.training import blocks, teacher
from specjax.training.objectives.coupled import Coupled

pytestmark = pytest.mark.usefixtures('quick_compiles')

KEY = jax.random.key(3)
BATCH = bx.batch_of()
HEAT, SHARPNESS = 0.7, (1.0, 1.5)  # the second for all that are deeper


def objective(causal=False, **settings):
  settings = {
    'anchors': 20,
    'gamma': 3.0,
    'temperature': HEAT,
    'sharpness': SHARPNESS,
  } | settings
  return Coupled(drafter=bx.drafter_of(causal), **settings)


def noise_of(key):
  """float32[rows, places, V]: of each token, as a sampler of the row has."""
  key = jax.random.fold_in(key, 1)
  rows = range(BATCH.token_BT.shape[0])
  key_B = jnp.stack([jax.random.fold_in(key, r) for r in rows])
  places = bx.TOKENS + bx.DEPTH
  first_B = jnp.zeros(len(rows), jnp.int32)
  return sampling.noise(key_B, first_B, places, fx.CONFIG.vocab)


def scores(of, noise):
  """float64[blocks, slots, V] of the drafts that decoding couples to it."""
  own = [noise[r, a + 1 : a + 2 + bx.DEPTH] for r, a, _ in bx.blocks_of(BATCH)]
  last = len(SHARPNESS) - 1
  sharpness = [SHARPNESS[min(k, last)] for k in range(bx.DEPTH + 1)]
  _, table = bx.drafted(
    of.drafter,
    bx.params_of(of.drafter),
    BATCH,
    noise=jnp.stack(own),
    heat=HEAT,
    sharpness=jnp.asarray(sharpness),
  )
  return bx.by_token((table.token_BWC, table.logq_BWC))


def expected(of, fixed):
  """(loss, accuracy), slot by slot in float64."""
  ids = None if fixed.id_V is None else list(fx.FEW)
  noise = noise_of(KEY)
  score, log_p = scores(of, noise), bx.target_laws(BATCH)
  sums, right = np.zeros(2), []
  for i, k, r, place in bx.slots_of(BATCH):
    drawn = log_p[r, place - 1] + HEAT * np.asarray(noise[r, place])
    mine = bx.normal(score[i, k], ids)
    right.append(np.argmax(mine) == np.argmax(drawn))
    y = np.argmax(drawn) if ids is None else ids[np.argmax(drawn[ids])]
    if ids is not None and int(BATCH.token_BT[r, place]) not in ids:
      continue
    weight = np.exp(-k / of.gamma)
    sums += -weight * mine[y], weight
  return sums[0] / sums[1], np.mean(right)


@pytest.mark.parametrize(
  ('of', 'fixed'),
  [
    (objective(), bx.FIXED),
    (objective(causal=True), bx.FIXED),
    (objective(), bx.FEW),
  ],
  ids=['dflash', 'jetspec', 'few'],
)
def test_scores_are_those_of_coupled_decoding(of, fixed):
  """Catches noise of another place, and a temperature or sharpness misplaced.

  Scores come from `begin` in a round that has the same noise at the same
  places; a trimmed vocabulary only renormalises them.
  """
  params = bx.params_of(of.drafter)
  (loss, pairs), _ = bx.total(of, params, fixed, BATCH, KEY)
  want, accuracy = expected(of, fixed)
  np.testing.assert_allclose(loss, want, rtol=1e-4)
  got = bx.figures(pairs)
  np.testing.assert_allclose(got['coupled'], want, rtol=1e-4)
  np.testing.assert_allclose(got['accuracy'], accuracy, rtol=1e-5)
  assert 1 <= got['prefix'] < bx.BLOCK


def test_noise_is_new_in_every_step():
  """All anchors are drawn with any key, so only the noise can differ."""
  of = objective()
  params = bx.params_of(of.drafter)
  loss = [
    float(bx.total(of, params, bx.FIXED, BATCH, jax.random.key(i))[0][0])
    for i in (1, 1, 2)
  ]
  assert loss[0] == loss[1] != loss[2]


def test_the_targets_own_law_loses_nothing_when_sharp():
  """Hidden states of the target in place of the drafter's: y is always taken.

  The guard against noise that the two sides draw for different places.
  """
  of = objective(sharpness=(1e-3,))
  view = teacher.read(fx.WEIGHTS, BATCH, of.drafter.taps)
  anchor_BA, valid_BA = blocks.draw_anchors(BATCH, KEY, 20)
  slots = blocks.slots(BATCH, anchor_BA, valid_BA, bx.BLOCK)
  pick = jax.vmap(lambda x, i: x[i])
  value_BAT, right_BAT = of._measure(
    pick(view.hidden_BTD, slots.before_BAT),
    of.drafter.head(None, fx.WEIGHTS),
    bx.FIXED,
    view,
    slots,
    KEY,
  )
  assert right_BAT[slots.wanted_BAT].all()
  assert value_BAT[slots.wanted_BAT].max() < 1


def test_every_leaf_learns():
  """Gradients are finite and reach all parameters."""
  of = objective()
  _, grads = bx.total(of, bx.params_of(of.drafter), bx.FIXED, BATCH, KEY)
  for path, g in jax.tree_util.tree_leaves_with_path(grads):
    assert np.isfinite(g).all() and np.abs(g).max() > 0, path


def test_a_share_is_over_the_whole_steps_divisor():
  """Catches a mean per micro-batch."""
  of = objective()
  params = bx.params_of(of.drafter)
  (one, _), _ = bx.total(of, params, bx.FIXED, BATCH, KEY)
  (half, _), _ = bx.total(of, params, bx.FIXED, BATCH, KEY, scale=2.0)
  np.testing.assert_allclose(half, one / 2, rtol=1e-6)
  mass = [
    of.mass(bx.FIXED, jax.tree.map(lambda x, r=r: x[r : r + 1], BATCH), KEY)
    for r in range(2)
  ]
  total = of.mass(bx.FIXED, BATCH, KEY)
  np.testing.assert_allclose(sum(mass), total, rtol=1e-5)


@pytest.mark.parametrize(
  'wrong',
  [{'temperature': 0.0}, {'sharpness': ()}, {'sharpness': (0.0,)}],
)
def test_refuses_what_cannot_be_coupled(wrong):
  """Each message names what was given."""
  with pytest.raises(ValueError, match=next(iter(wrong))):
    dataclasses.replace(objective(), **wrong)
