"""Figures of speculative decoding from counters, on the host.

A round's walk is its acceptance length as the papers count it: accepted drafts
and the target's token behind them, before a stop id or the cap cut the text.
The tokens of a round are what was left of the walk after the cut. A response
capped at one token has no rounds; what is then not defined is nan.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import scipy.stats

Walks = Sequence[Sequence[int]]


def mean_accepted(
  tokens_by_rounds: int | Sequence[int], rounds: int | Sequence[int]
) -> float:
  """Tokens that rounds emitted, per round, pooled over all responses.

  The prefill's token is no round's and must not be counted. Plain decoding has
  exactly 1.

  Args:
    tokens_by_rounds: one response's count, or one per response.
    rounds: the same for rounds.

  Returns:
    The ratio of the sums; nan without any round.
  """
  total = float(np.sum(rounds))
  return float(np.sum(tokens_by_rounds)) / total if total else float('nan')


def tau_paper(walks: Walks) -> float:
  """Mean over responses of a response's mean uncut walk.

  The acceptance length as DFlash's, DDTree's and TreeFlash's public code
  averages it: every response weighs the same, the last walk counts whole.
  Responses without rounds have no mean and are left out; nan if all are.
  """
  means = [float(np.mean(walk)) for walk in walks if len(walk)]
  return float(np.mean(means)) if means else float('nan')


def rounds_for(walk: Sequence[int], tokens: int) -> int:
  """Rounds it took until `tokens` tokens were emitted by rounds.

  All of them where the walks do not reach that far (the text was cut).
  """
  if tokens <= 0:
    return 0
  reached = np.cumsum(walk) >= tokens
  return int(np.argmax(reached)) + 1 if reached.any() else len(walk)


def interval(
  tokens_by_rounds: Sequence[int],
  rounds: Sequence[int],
  *,
  confidence: float = 0.95,
  seed: int = 0,
  resamples: int = 2000,
) -> tuple[float, float]:
  """Percentile bootstrap interval of `mean_accepted`, over prompts.

  Prompts are resampled and not rounds, since the rounds of one text are not
  independent (Efron & Tibshirani, An Introduction to the Bootstrap, 1993).

  Returns:
    (low, high). (nan, nan) with fewer than two prompts that had rounds: one
    prompt says nothing about another.

  Raises:
    ValueError: lists of different length, or a confidence outside (0, 1).
  """
  tokens, rounds = np.asarray(tokens_by_rounds), np.asarray(rounds)
  if tokens.shape != rounds.shape or tokens.ndim != 1:
    raise ValueError(
      f'tokens have shape {tokens.shape} and rounds {rounds.shape}; give one '
      'number per prompt in both.'
    )
  alive = rounds > 0
  return _bootstrap(
    (tokens[alive], rounds[alive]),
    lambda t, r, axis: t.sum(axis=axis) / r.sum(axis=axis),
    confidence=confidence,
    seed=seed,
    resamples=resamples,
  )


def _bootstrap(
  columns: Sequence[np.ndarray], ratio, *, confidence, seed, resamples
) -> tuple[float, float]:
  """Percentile interval of a ratio of columns, a prompt being one draw."""
  if not 0 < confidence < 1:
    raise ValueError(f'confidence is {confidence}; it must be in (0, 1).')
  if len(columns[0]) < 2:
    return float('nan'), float('nan')
  with warnings.catch_warnings():
    # All prompts alike: scipy warns that the distribution is degenerate.
    warnings.simplefilter('ignore', scipy.stats.DegenerateDataWarning)
    found = scipy.stats.bootstrap(
      columns,
      ratio,
      paired=True,
      vectorized=True,
      method='percentile',
      confidence_level=confidence,
      n_resamples=resamples,
      random_state=np.random.default_rng(seed),
    ).confidence_interval
  return float(found.low), float(found.high)


def acceptance_by_depth(walks: Walks, max_depth: int) -> list[float]:
  """Share of rounds that kept at least d drafts, for d = 1 .. max_depth.

  A walk of length w kept w - 1 drafts. The shares add up to the mean walk
  less one. nan without any round.
  """
  drafts = np.concatenate([np.asarray(walk, float) for walk in walks] or [[]])
  drafts = drafts - 1
  if not drafts.size:
    return [float('nan')] * max_depth
  return [float(np.mean(drafts >= d)) for d in range(1, max_depth + 1)]


def speed_up(
  seconds: Sequence[float],
  tokens: Sequence[int],
  plain_seconds: Sequence[float],
  plain_tokens: Sequence[int],
) -> float:
  """How many times faster a token comes than in plain decoding.

  Ratio of total seconds per token, so that long texts weigh more than short
  ones. Both are to be measured in one run on one machine.

  Returns:
    Plain decoding has exactly 1; nan where either emitted no token.
  """
  if not np.sum(tokens) or not np.sum(plain_tokens):
    return float('nan')
  plain = np.sum(plain_seconds) / np.sum(plain_tokens)
  return float(plain / (np.sum(seconds) / np.sum(tokens)))


def speed_up_interval(
  seconds: Sequence[float],
  tokens: Sequence[int],
  plain_seconds: Sequence[float],
  plain_tokens: Sequence[int],
  *,
  confidence: float = 0.95,
  seed: int = 0,
  resamples: int = 2000,
) -> tuple[float, float]:
  """Percentile bootstrap interval of `speed_up`, over prompts.

  A prompt is drawn with both of its times: what it is slow at, both are.

  Args:
    seconds: one per prompt.
    tokens: likewise.
    plain_seconds: of plain decoding, prompt by prompt the same.
    plain_tokens: likewise.
    confidence: with the next two, as for `interval`.

  Returns:
    (low, high). (nan, nan) with fewer than two prompts of which both emitted
    tokens.

  Raises:
    ValueError: lists of different length, or a confidence outside (0, 1).
  """
  columns = [
    np.asarray(x, float) for x in (seconds, tokens, plain_seconds, plain_tokens)
  ]
  if len({x.shape for x in columns}) > 1 or columns[0].ndim != 1:
    raise ValueError(
      f'columns have shapes {[x.shape for x in columns]}; give one number per '
      'prompt in each.'
    )
  alive = (columns[1] > 0) & (columns[3] > 0)
  return _bootstrap(
    [x[alive] for x in columns],
    lambda s, t, ps, pt, axis: (
      (ps.sum(axis=axis) / pt.sum(axis=axis))
      / (s.sum(axis=axis) / t.sum(axis=axis))
    ),
    confidence=confidence,
    seed=seed,
    resamples=resamples,
  )
