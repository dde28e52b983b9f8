"""Prompt lookup: no weights, the template of a drafter."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.checks import whole
from specjax.types import Array, Ask, Candidates, Frontier, Round


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLookup:
  """Proposes what followed the latest earlier copy of the last `ngram` tokens.

  Saxena, "Prompt Lookup Decoding", 2023 (github.com/apoorvumang/
  prompt-lookup-decoding): longer matches first, down to one token.
  """

  ngram: int = 3
  taps: tuple[int, ...] = ()
  shared_rows: bool = True  # one copied token per depth, whatever the path
  max_depth: int | None = None

  def __post_init__(self):
    if not whole(self.ngram) or self.ngram < 1:
      raise ValueError(f'ngram is {self.ngram}; match at least 1 token.')

  def init(self, key, target_config):
    return ()  # nothing to learn

  def tensors(self):
    return []

  def head(self, params, target):
    return None

  def start(self, params, target, batch, capacity):
    return ()  # nothing to remember: the context has it all

  def begin(self, params, target, state, round: Round, ask: Ask):
    tokens_BT = round.context.tokens_BT
    length_B1 = round.context.length_B[:, None]
    column_T = jnp.arange(tokens_BT.shape[1])
    # A match may end at any earlier token that has a successor.
    match_BT = column_T < length_B1 - 1
    best_B1 = jnp.full_like(length_B1, -1)
    for back in range(self.ngram):
      want_B1 = _take(tokens_BT, length_B1 - 1 - back)
      match_BT &= jnp.roll(tokens_BT, back, axis=1) == want_B1
      match_BT &= column_T >= back
      end_B1 = jnp.max(jnp.where(match_BT, column_T, -1), 1, keepdims=True)
      best_B1 = jnp.where(end_B1 >= 0, end_B1, best_B1)
    source_BP = best_B1 + 1 + jnp.arange(max(ask.depth, 1))
    known_BP = (best_B1 >= 0) & (source_BP < length_B1)
    copied_BP = jnp.where(known_BP, _take(tokens_BT, source_BP), -1)
    return _candidates(copied_BP[:, :1]), copied_BP

  def expand(self, params, target, copied_BP, frontier: Frontier):
    at = frontier.depth
    token_BW = jnp.broadcast_to(
      copied_BP[:, at : at + 1], frontier.token_BW.shape
    )
    return _candidates(token_BW), copied_BP

  def commit(self, params, target, state, scratch, accepted):
    return ()


def _candidates(token_BW: Array) -> Candidates:
  """One candidate per row, sure of itself, or silent where it is -1."""
  logq_BW = jnp.where(token_BW >= 0, 0.0, -jnp.inf)
  return Candidates(jnp.maximum(token_BW, 0)[..., None], logq_BW[..., None])


def _take(x_BT: Array, index_BP: Array) -> Array:
  """Row-wise gather that answers -1 outside the row."""
  inside = (index_BP >= 0) & (index_BP < x_BT.shape[1])
  index = jnp.clip(index_BP, 0, x_BT.shape[1] - 1)
  return jnp.where(inside, jnp.take_along_axis(x_BT, index, axis=1), -1)
