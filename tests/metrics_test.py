"""Figures against values computed by hand."""

import math
import warnings

import numpy as np
import pytest

from specjax import metrics

# Two responses: 9 tokens in 3 rounds, 3 in 2 rounds.
WALKS = [[4, 1, 4], [1, 2]]


def test_mean_accepted_is_pooled():
  """Catches a mean of means, which would be (3 + 1.5) / 2."""
  assert metrics.mean_accepted([9, 3], [3, 2]) == pytest.approx(12 / 5)
  assert metrics.mean_accepted(7, 7) == 1.0
  assert math.isnan(metrics.mean_accepted([0], [0]))


def test_tau_is_the_mean_of_means():
  """Catches pooling, and a response without rounds that counts as zero."""
  assert metrics.tau_paper(WALKS) == pytest.approx((3 + 1.5) / 2)
  assert metrics.tau_paper([*WALKS, []]) == metrics.tau_paper(WALKS)
  assert math.isnan(metrics.tau_paper([[]]))


@pytest.mark.parametrize(
  'tokens, rounds', [(0, 0), (1, 1), (4, 1), (5, 2), (6, 3), (9, 3), (99, 3)]
)
def test_rounds_for(tokens, rounds):
  """Catches an off-by-one where a walk ends exactly at the count."""
  assert metrics.rounds_for([4, 1, 4], tokens) == rounds


def test_acceptance_by_depth():
  """Catches counting the target's own token as a draft."""
  shares = metrics.acceptance_by_depth(WALKS, 4)
  assert shares == pytest.approx([3 / 5, 2 / 5, 2 / 5, 0])
  assert 1 + sum(shares) == pytest.approx(np.mean([4, 1, 4, 1, 2]))
  assert np.isnan(metrics.acceptance_by_depth([[]], 2)).all()
  assert np.isnan(metrics.acceptance_by_depth([], 1)).all()


def test_interval_resamples_pairs():
  """Two prompts: a resample is (a, a), (a, b) or (b, b), with known odds.

  Unpaired resampling would also see 9/2 and 3/3, outside of [3/2, 3].
  """
  low, high = metrics.interval([9, 3], [3, 2], confidence=0.95)
  assert (low, high) == pytest.approx((1.5, 3.0))
  # Half of the resamples are (a, b): the middle half's ends are its value.
  low, high = metrics.interval([9, 3], [3, 2], confidence=0.3)
  assert (low, high) == pytest.approx((12 / 5, 12 / 5))


def test_interval_repeats_with_its_seed():
  rng = np.random.default_rng(1)
  rounds = rng.integers(5, 30, 12)
  tokens = rounds + rng.integers(0, 60, 12)
  first = metrics.interval(tokens, rounds, seed=3)
  assert first == metrics.interval(tokens, rounds, seed=3)
  assert first[0] < metrics.mean_accepted(tokens, rounds) < first[1]
  wide = metrics.interval(tokens, rounds, seed=3, confidence=0.99)
  assert wide[0] < first[0] < first[1] < wide[1]


def test_interval_degenerate_cases():
  """Catches a 0/0, a warning, and a width of zero claimed from one prompt."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert np.isnan(metrics.interval([9], [3])).all()
    assert np.isnan(metrics.interval([9, 0], [3, 0])).all()
    assert metrics.interval([8, 8, 0], [4, 4, 0]) == (2.0, 2.0)
  with pytest.raises(ValueError, match='one number per prompt'):
    metrics.interval([1, 2], [1])
  with pytest.raises(ValueError, match='confidence is 95'):
    metrics.interval([1, 2], [1, 2], confidence=95)


def test_speed_up_is_a_ratio_of_totals():
  """Catches a mean of ratios, which would be (2 + 1) / 2."""
  got = metrics.speed_up([1.0, 8.0], [10, 10], [2.0, 8.0], [10, 10])
  assert got == pytest.approx(10 / 9)
  assert metrics.speed_up([1.0], [5], [4.0], [10]) == pytest.approx(2.0)
  assert math.isnan(metrics.speed_up([0.0], [0], [1.0], [10]))


def test_speed_up_interval_keeps_prompts_together():
  """Two prompts, sped up by 2 and by 4: resamples are one, both or the other.

  Drawn apart, 8 plain seconds would meet 1 of the method's.
  """
  columns = [1.0, 2.0], [10, 10], [2.0, 8.0], [10, 10]
  low, high = metrics.speed_up_interval(*columns)
  assert (low, high) == pytest.approx((2, 4))
  middle = metrics.speed_up_interval(*columns, confidence=0.3)
  assert middle == pytest.approx((10 / 3, 10 / 3))
  assert metrics.speed_up(*columns) == pytest.approx(10 / 3)
  one = metrics.speed_up_interval([1.0, 1.0], [5, 0], [2.0, 2.0], [5, 5])
  assert np.isnan(one).all()
  with pytest.raises(ValueError, match='one number per prompt'):
    metrics.speed_up_interval([1.0], [5], [1.0, 2.0], [5, 5])
