"""The drafter of plain decoding."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.types import Candidates


@dataclasses.dataclass(frozen=True, kw_only=True)
class Silent:
  """Proposes nothing."""

  taps: tuple[int, ...] = ()
  shared_rows: bool = True
  max_depth: int | None = 0

  def init(self, key, target_config):
    return ()

  def tensors(self):
    return []

  def head(self, params, target):
    return None

  def start(self, params, target, batch, capacity):
    return ()

  def begin(self, params, target, state, round, ask):
    b = round.context.length_B.shape[0]
    token_B11 = jnp.zeros((b, 1, 1), jnp.int32)
    return Candidates(token_B11, jnp.full((b, 1, 1), -jnp.inf)), ()

  def expand(self, params, target, scratch, frontier):
    raise ValueError('plain decoding has no tree to expand; use depth=0.')

  def commit(self, params, target, state, scratch, accepted):
    return ()
