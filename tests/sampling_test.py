"""Warping, noise and draws: what every method calls 'the target's law'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from specjax import sampling
from specjax.types import Sampling

V = 37
WARP, DRAW = jax.jit(sampling.warp), jax.jit(sampling.draw)
NOISE = jax.jit(sampling.noise, static_argnums=(2, 3, 4))


def settings(rows, **kw):
  """`rows` = (temperature, top-k, top-p, min-p) each."""
  heat, k, p, m = zip(*rows, strict=True)
  return Sampling(
    temperature_B=jnp.asarray(heat, jnp.float32),
    top_k_B=jnp.asarray(k, jnp.int32),
    top_p_B=jnp.asarray(p, jnp.float32),
    min_p_B=jnp.asarray(m, jnp.float32),
    **kw,
  )


def softmax(z):
  e = np.exp(np.asarray(z - z.max(), np.float64))
  return e / e.sum()


def oracle(z, heat, k, p, m):
  """By sorting, in float64; a tie with the last token kept is kept."""
  z = np.asarray(z, np.float64)
  if heat == 0:
    return np.where(np.arange(len(z)) == z.argmax(), 0.0, -np.inf)
  z = z / heat
  if k:
    z = np.where(z < np.sort(z)[::-1][min(k, len(z)) - 1], -np.inf, z)
  if p < 1:
    prob = softmax(z)
    best_first = np.sort(prob)[::-1]
    before = np.cumsum(best_first) - best_first
    z = np.where(prob < best_first[before < p].min(), -np.inf, z)
  return np.where(softmax(z) < m * softmax(z).max(), -np.inf, z)


ROWS = [
  (1.0, 0, 1.0, 0.0),
  (0.3, 0, 1.0, 0.0),
  (2.5, 0, 1.0, 0.0),
  (1.0, 1, 1.0, 0.0),
  (1.0, 7, 1.0, 0.0),
  (1.0, 500, 1.0, 0.0),
  (1.0, 0, 0.9, 0.0),
  (1.0, 0, 0.31, 0.0),
  (1.0, 0, 1e-6, 0.0),
  (1.0, 0, 1.0, 0.07),
  (0.7, 9, 0.8, 0.0),
  (1.3, 20, 0.95, 0.04),
  (0.0, 5, 0.5, 0.1),
]


FLAT = [(3.0, 0, 0.97, 0.0), (1.0, 300, 1.0, 0.0), (2.0, 300, 0.99, 0.001)]


@pytest.mark.parametrize(
  ('vocab', 'rows'), [(37, ROWS), (600, ROWS), (600, ROWS + FLAT)]
)
def test_warp_equals_the_oracle(vocab, rows):
  """One batch, all settings: catches a row that reads another's.

  A vocabulary that is no short list is cut by its best tokens, or, where one
  row's law is flat, by bisection.
  """
  z_BNV = np.random.default_rng(0).normal(size=(len(rows), 3, vocab)) * 2
  z_BNV = z_BNV.astype(np.float32)
  got_BNV = WARP(jnp.asarray(z_BNV), settings(rows))
  for b, row in enumerate(rows):
    for n in range(3):
      want_V = oracle(z_BNV[b, n], *row)
      np.testing.assert_allclose(got_BNV[b, n], want_V, rtol=1e-6, err_msg=row)


def test_top_p_just_below_one_keeps_all_that_matters():
  """Rounding must not turn 'p is never reached' into 'keep the best'."""
  z_BNV = jax.random.normal(jax.random.key(3), (64, 1, V))
  row = (1.0, 0, 1 - 2.0**-24, 0.0)
  kept_BN = np.isfinite(WARP(z_BNV, settings([row] * 64))).sum(-1)
  assert kept_BN.min() >= V - 2


def warp_one(z, *row):
  return np.asarray(WARP(jnp.asarray([[z]], jnp.float32), settings([row])))[
    0, 0
  ]


def test_top_k_keeps_ties():
  kept = np.isfinite(warp_one([3.0, 1, 2, 2, 2, 0], 1.0, 2, 1.0, 0.0))
  assert kept.tolist() == [True, False, True, True, True, False]


def test_top_p_keeps_the_token_that_crosses():
  z = np.log([0.5, 0.25, 0.15, 0.1])
  for p, count in ((0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.95, 4)):
    assert np.isfinite(warp_one(z, 1.0, 0, p, 0.0)).sum() == count, p


def test_top_p_measures_what_top_k_left():
  z = np.log([0.4, 0.3, 0.2, 0.1])  # of the best two, the first has 4/7
  assert np.isfinite(warp_one(z, 1.0, 2, 0.56, 0.0)).sum() == 1
  assert np.isfinite(warp_one(z, 1.0, 0, 0.56, 0.0)).sum() == 2


def test_min_p_is_relative_to_the_best():
  z = np.log([0.5, 0.26, 0.14, 0.1])
  assert np.isfinite(warp_one(z, 1.0, 0, 1.0, 0.5)).sum() == 2
  assert np.isfinite(warp_one(z, 1.0, 0, 1.0, 0.25)).sum() == 3


@pytest.mark.parametrize('heat', [0.4, 1.0])
def test_settings_that_are_off_change_nothing(heat):
  z_BNV = jax.random.normal(jax.random.key(0), (2, 3, V)) * 9
  off = [(heat, 0, 1.0, 0.0)] * 2
  np.testing.assert_array_equal(
    WARP(z_BNV, settings(off)), z_BNV / jnp.float32(heat)
  )
  np.testing.assert_array_equal(
    WARP(z_BNV, settings(off)), WARP(z_BNV, settings(off, filtering=False))
  )


def test_greedy_takes_the_first_of_equal_maxima():
  """Also beside rows that sample, and without noise."""
  z_BNV = jnp.asarray([[[1.0, 4, 4, 0]]] * 2)
  mixed = settings([(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0)])
  noise_BNV = jnp.asarray([[[0.0, -9, 9, 99]]] * 2)
  drawn_BN = DRAW(z_BNV, mixed, noise_BNV)
  assert drawn_BN[:, 0].tolist() == [1, 3]
  greedy = settings([(0.0, 0, 1.0, 0.0)] * 2, all_greedy=True)
  assert sampling.draw(z_BNV, greedy, None)[:, 0].tolist() == [1, 1]


def test_noise_belongs_to_a_position():
  """However a text is cut into rounds, and whatever batch a row is in."""
  key_B = sampling.row_keys([3, 4])
  whole_BPV = NOISE(key_B, jnp.array([5, 9]), 6, V)
  np.testing.assert_array_equal(
    NOISE(key_B, jnp.array([7, 11]), 4, V), whole_BPV[:, 2:]
  )
  np.testing.assert_array_equal(
    NOISE(key_B[1:], jnp.array([9]), 1, V)[0], whole_BPV[1, :1]
  )
  draft_BPV = NOISE(key_B, jnp.array([5, 9]), 6, V, sampling.DRAFT)
  assert (whole_BPV != draft_BPV).mean() > 0.99
  same_positions_BPV = NOISE(key_B, jnp.array([5, 5]), 6, V)
  rows = np.asarray(same_positions_BPV).reshape(12, V)
  assert len(np.unique(rows)) > 0.99 * rows.size


def test_keys_differ_by_purpose_position_and_row():
  key_B = sampling.row_keys([0, 1, 2])
  seen = [
    tuple(jax.random.key_data(key).tolist())
    for purpose in (
      sampling.NOISE,
      sampling.DRAFT,
      sampling.ACCEPT,
      sampling.RESIDUAL,
    )
    for at in range(5)
    for key in sampling.position_keys(key_B, purpose, jnp.full(3, at))
  ]
  assert len(set(seen)) == len(seen) == 60


def chi_square(tokens, law):
  counts = np.bincount(np.asarray(tokens).ravel(), minlength=len(law))
  assert not counts[law == 0].any()
  live = law > 0
  return scipy.stats.chisquare(
    counts[live], counts.sum() * law[live] / law.sum()
  ).pvalue


@pytest.mark.parametrize('row', [(1.0, 0, 1.0, 0.0), (1.5, 5, 0.9, 0.0)])
def test_draws_follow_the_warped_law(row):
  """60 000 positions of one row; another temperature is found."""
  z_V = jax.random.normal(jax.random.key(1), (8,)) * 1.5
  count = 60_000
  noise_BPV = NOISE(sampling.row_keys([0]), jnp.array([1]), count, 8)
  z_BNV = jnp.broadcast_to(z_V, noise_BPV.shape)
  law = softmax(WARP(z_V[None, None], settings([row]))[0, 0])
  drawn = DRAW(z_BNV, settings([row]), noise_BPV)
  assert chi_square(drawn, law) > 1e-6
  off = law ** (1 / 1.1)
  assert chi_square(drawn, off / off.sum()) < 1e-12
