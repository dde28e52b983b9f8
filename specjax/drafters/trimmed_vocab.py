"""A drafter whose head is cut to a fixed list of tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.drafters.wrapper import Wrapper
from specjax.types import (
  Accepted,
  Array,
  Ask,
  Candidates,
  Frontier,
  Head,
  Round,
  struct,
)


@struct
class Trimmed:
  """The inner drafter's parameters, and the rows it may propose from.

  The rows are a copy, made once: gathered in the loop they would be read and
  written at each step, which is what the cut is to save. The embedding stays
  whole, any token may be read.
  """

  inner: Any
  rows_VD: Array
  id_V: Array  # int32, ascending


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrimmedVocab(Wrapper):
  """Lets a drafter propose a list's tokens only; all else is the drafter's.

  Zhao et al., "FR-Spec: Accelerating Large-Vocabulary Language Models via
  Frequency-Ranked Speculative Sampling", arXiv:2502.14856. The softmax is over
  the rows that are left. Verification keeps the whole vocabulary, so that a
  token without a row comes from the target alone and no law changes.

  The inner drafter has a head; `specjax.vocab.fr_spec` cuts the rows.
  """

  def head(self, params: Trimmed, target) -> Head:
    return Head(params.rows_VD, params.id_V)

  def start(self, params: Trimmed, target, batch: int, capacity: int) -> Any:
    return self.inner.start(params.inner, target, batch, capacity)

  def begin(
    self, params: Trimmed, target, state, round: Round, ask: Ask
  ) -> tuple[Candidates, Any]:
    if round.head is None:  # a wrapper around this one is narrower
      round = round.replace(head=self.head(params, target))
    return self.inner.begin(params.inner, target, state, round, ask)

  def expand(
    self, params: Trimmed, target, scratch, frontier: Frontier
  ) -> tuple[Candidates, Any]:
    return self.inner.expand(params.inner, target, scratch, frontier)

  def commit(
    self, params: Trimmed, target, state, scratch, accepted: Accepted
  ) -> Any:
    return self.inner.commit(params.inner, target, state, scratch, accepted)
