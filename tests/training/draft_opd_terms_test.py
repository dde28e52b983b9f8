"""The terms of Draft-OPD, one slot at a time, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import opd_fixture as ox
import pytest

from specjax.training.objectives.draft_opd import DraftOpd, coins, surrogate


class TestTerms:
  """Of one slot."""

  S = jnp.asarray([-0.20, -1.50, -0.35, -1.20])
  T = jnp.asarray([-0.05, -0.30, -2.40, -3.00])

  def test_numbers(self):
    """Worked out with a pocket calculator: f, g, and both ways to add up."""
    f, g = coins(self.S, self.T)[:2], surrogate(self.S, self.T)[2:]
    np.testing.assert_allclose(f, [0.078656, 0.604467], atol=2e-6)
    np.testing.assert_allclose(g, [1.178735, 0.965299], atol=2e-6)
    w = np.array([0.8, 0.64])  # slots 2 and 3
    pooled = (f.sum() + (w * g).sum()) / (2 + w.sum())
    np.testing.assert_allclose(pooled, 0.652297, atol=2e-6)
    apart = (f.mean() + (w * g).sum() / w.sum()) / 2
    np.testing.assert_allclose(apart, 0.712718, atol=2e-6)

  def test_least_where_both_agree(self):
    """Catches a swapped sign or swapped arguments."""
    t = jnp.linspace(-9, -0.01, 40)
    for term in (coins, surrogate):
      slope = jax.vmap(jax.grad(term))
      np.testing.assert_allclose(term(t, t), 0, atol=1e-6)
      np.testing.assert_allclose(slope(t, t), 0, atol=1e-5)
      for gap in (-0.3, 0.2):
        s = jnp.minimum(t + gap, -1e-3)
        assert (term(s, t)[:-1] > 0).all()
        assert (jnp.sign(slope(s, t))[:-1] == np.sign(gap)).all()

  def test_slopes(self):
    """df/ds = -e^t + (1 - e^t) e^s / (1 - e^s), dg/ds = 1 - e^(t - s)."""
    s, t = np.asarray(self.S, float), np.asarray(self.T, float)
    p, q = np.exp(t), np.exp(s)
    df, dg = -p + (1 - p) * q / (1 - q), 1 - np.exp(t - s)
    slope = lambda f: jax.vmap(jax.grad(f))(self.S, self.T)
    np.testing.assert_allclose(slope(coins), df, rtol=1e-4)
    np.testing.assert_allclose(slope(surrogate), dg, rtol=1e-4)

  def test_clamps(self):
    """Far apart the authors' terms are flat; without clamps they are not."""
    for s, t in ((-0.01, -12.0), (-6.0, -1.0)):
      assert surrogate(s, t) == 10 and jax.grad(surrogate)(s, t) == 0
      assert jax.grad(surrogate)(s, t, None) != 0
    assert jax.grad(coins)(-12.0, -0.1) == 0
    assert jax.grad(coins)(-12.0, -0.1, None) < -0.8
    assert np.isfinite(surrogate(-200.0, -0.1, None))
    edge = jnp.asarray([0.0, -1e-9, -50.0])
    assert np.isfinite(coins(edge, edge[::-1])).all()

  def test_coins_know_less_than_laws(self):
    """Data processing: f of any token is at most KL(p || q)."""
    logits = 3 * np.random.default_rng(0).normal(size=(2, 50, 16))
    p, q = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    kl = (np.exp(p) * (p - q)).sum(axis=1)
    f = coins(jnp.asarray(q), jnp.asarray(p), None)
    assert (f <= kl[:, None] + 1e-4).all() and (f >= -1e-5).all()
    assert (kl[:, None] - f).max() > 0.1


class TestSettings:
  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'form': 'both'}, "form is 'both'"),
      ({'gamma': 0.0}, 'gamma is 0.0'),
      ({'accepted': 0, 'rejected': 0}, 'one of them above 0'),
      ({'accepted': -1.0}, 'from 0 on'),
      ({'clamp': 0.0}, 'clamp is 0.0'),
    ],
  )
  def test_refusals(self, options, message):
    with pytest.raises(ValueError, match=message):
      DraftOpd(drafter=ox.DRAFTER, **options)
