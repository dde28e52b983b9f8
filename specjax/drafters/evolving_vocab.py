"""A drafter whose vocabulary is a fixed list and a buffer that follows."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.drafters import vocab_buffer
from specjax.drafters.vocab_buffer import STATIC, Buffer, Index, Rule
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
class Evolving:
  """The inner drafter's parameters, the fixed rows and what finds rare ones."""

  inner: Any
  rows_VD: Array
  id_V: Array  # int32, ascending
  semantic: Index | None = None
  statistical: Index | None = None

  @property
  def indices(self) -> tuple[Index | None, Index | None]:
    return self.semantic, self.statistical


@struct
class Tally:
  """What the buffer was good for, summed over a sequence's live rounds.

  A round's tokens count whole, also those that a stop id or the cap cuts off.
  """

  token_B: Array  # int32, tokens emitted
  rare_B: Array  # those outside the fixed list
  held_B: Array  # of these, in the buffer before their round
  hit_B: Array  # accepted drafts that came from the buffer
  swap_B: Array  # slots that changed hands


@struct
class Evolved:
  """The inner drafter's state and each sequence's buffer."""

  inner: Any
  buffer: Buffer
  tally: Tally


@struct
class Scratch:
  inner: Any
  alive_B: Array  # bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolvingVocab(Wrapper):
  """Lets a drafter propose a fixed list and a buffer of rare tokens.

  After Zhang et al., "Evolving Speculative Decoding via Real-Time Vocabulary
  and Parameter Adaptation" (EvoSpec), arXiv:2605.27390: a frequency-ranked list
  as in FR-Spec, and a small set of long-tail tokens that the text calls for.
  The paper has no public code and its scores are not known to us; how tokens
  are found, weighed and replaced here is our own choice (`vocab_buffer.Rule`).

  The buffer changes between rounds only, by what was committed before, and its
  rows are in the softmax that drafts are drawn from; so every rule of
  verification stays exact. Its rows come from the inner drafter's whole head,
  few at a time: it has one for every token. `specjax.vocab.evospec` adds what a
  checkpoint of the inner drafter lacks.
  """

  buffer: int  # slots
  rule: Rule = dataclasses.field(default_factory=Rule)

  def head(self, params: Evolving, target) -> Head:
    """The fixed part; a sequence's own rows are in its state."""
    return Head(params.rows_VD, params.id_V)

  def start(
    self, params: Evolving, target, batch: int, capacity: int
  ) -> Evolved:
    return Evolved(
      inner=self.inner.start(params.inner, target, batch, capacity),
      buffer=vocab_buffer.empty(
        self._all_rows(params, target), params.id_V, batch, self.buffer
      ),
      tally=no_tally(batch),
    )

  def begin(
    self, params: Evolving, target, state: Evolved, round: Round, ask: Ask
  ) -> tuple[Candidates, Scratch]:
    if round.head is not None:
      raise ValueError(
        'a vocabulary that evolves cannot be cut by another one; wrap the '
        'drafter once.'
      )
    head = self.head(params, target).replace(
      own_BVD=state.buffer.row_BID, own_id_BV=state.buffer.id_BI
    )
    root, scratch = self.inner.begin(
      params.inner, target, state.inner, round.replace(head=head), ask
    )
    alive_B = round.alive_B
    if alive_B is None:
      alive_B = jnp.ones(round.context.length_B.shape, bool)
    return root, Scratch(inner=scratch, alive_B=alive_B)

  def expand(
    self, params: Evolving, target, scratch: Scratch, frontier: Frontier
  ) -> tuple[Candidates, Scratch]:
    candidates, inner = self.inner.expand(
      params.inner, target, scratch.inner, frontier
    )
    return candidates, scratch.replace(inner=inner)

  def commit(
    self,
    params: Evolving,
    target,
    state: Evolved,
    scratch: Scratch | None,
    accepted: Accepted,
  ) -> Evolved:
    inner = self.inner.commit(
      params.inner,
      target,
      state.inner,
      None if scratch is None else scratch.inner,
      accepted,
    )
    args = (
      state.buffer,
      self.rule,
      self._all_rows(params, target),
      params.indices,
      accepted,
    )
    if scratch is None:
      return state.replace(inner=inner, buffer=vocab_buffer.read(*args))
    buffer, swap_B = vocab_buffer.update(*args)
    count = tally(state.tally, state.buffer, accepted, swap_B, scratch.alive_B)
    return Evolved(inner=inner, buffer=buffer, tally=count)

  def _all_rows(self, params: Evolving, target) -> Array:
    return self.inner.head(params.inner, target).rows_VD


def no_tally(batch: int) -> Tally:
  """Nothing was counted yet."""
  return Tally(*(jnp.zeros((batch,), jnp.int32) for _ in range(5)))


def tally(
  before: Tally,
  buffer: Buffer,
  accepted: Accepted,
  swap_B: Array,
  alive_B: Array,
) -> Tally:
  """Counts a round; `buffer` is the one that its drafts were made with."""
  text_BT, depth_T = vocab_buffer.round_text(accepted)
  slot_BT = jnp.take_along_axis(buffer.slot_BV, text_BT, axis=1)
  length_B1 = accepted.length_B[:, None]
  new_BT = (depth_T > 0) & (depth_T <= length_B1) & alive_B[:, None]
  count = lambda x_BT: jnp.sum(x_BT & new_BT, axis=1, dtype=jnp.int32)
  held_BT = slot_BT >= 0
  return Tally(
    token_B=before.token_B + count(jnp.ones_like(held_BT)),
    rare_B=before.rare_B + count(slot_BT != STATIC),
    held_B=before.held_B + count(held_BT),
    hit_B=before.hit_B + count(held_BT & (depth_T < length_B1)),
    swap_B=before.swap_B + jnp.where(alive_B, swap_B, 0),
  )


def coverage(tally: Tally) -> Array:
  """float32[B]: share of the emitted tokens that could have been drafted."""
  missing_B = tally.rare_B - tally.held_B
  return 1 - missing_B / jnp.maximum(tally.token_B, 1)


def added_bytes(params: Evolving, state: Evolved) -> dict[str, int]:
  """Memory beside the inner drafter's: of the list, the indices, the buffers.

  Shapes from `jax.eval_shape` do as well.
  """
  size = lambda tree: sum(
    x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
  )
  return {
    'static': size((params.rows_VD, params.id_V)),
    'indices': size(params.indices),
    'buffer': size((state.buffer, state.tally)),
  }
