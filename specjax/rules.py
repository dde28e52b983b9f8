"""Which chain and which verifier go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specjax.method import sharpness_of
from specjax.trees.chain import Chain
from specjax.verify.follow import Follow
from specjax.verify.rejection import Rejection

RULES = ('follow', 'rejection')


def chain_parts(
  depth: int, rule: str, coupled: bool | float | Sequence[float] | None
) -> dict[str, Any]:
  """The parts of a `Method` that drafts one token per depth.

  Args:
    depth: drafts per round.
    rule: 'follow' keeps drafts that the target draws too; 'rejection' samples
      the drafts and keeps each with probability min(1, p / q). Both are exact.
    coupled: see `method.sharpness_of`; None couples what 'follow' verifies.

  Raises:
    ValueError: no such rule, or coupled drafts that are sampled.
  """
  if rule not in RULES:
    raise ValueError(f'rule is {rule!r}; choose one of {", ".join(RULES)}.')
  sampled = rule == 'rejection'
  if coupled is None:
    coupled = not sampled
  return {
    'tree': Chain(depth=depth, sampled=sampled),
    'verify': Rejection() if sampled else Follow(),
    'sharpness': sharpness_of(coupled),
  }
