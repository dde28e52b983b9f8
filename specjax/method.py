"""The three parts of a method: what might come, what to check, what may stay.

All parts are frozen, hashable objects, so that a `Method` is a static argument
of jit. Arrays never live in them: they are in `Params` and in `DecodeState`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from specjax.models.names import Tensor
from specjax.types import (
  Accepted,
  Array,
  Ask,
  Candidates,
  Frontier,
  Round,
  TokenTree,
  Verdict,
)

Expand = Callable[[Any, Frontier], tuple[Candidates, Any]]


class Drafter(Protocol):
  """What might come next?

  `target` is the target's weights, whose embedding and head a drafter may
  borrow. State survives a round only through `commit`: the scratch dies with
  the round, which makes the roll-back of a drafter's own cache explicit.
  """

  taps: tuple[int, ...]  # target layers whose outputs it reads, in order
  shared_rows: bool  # one distribution per depth, whatever the path
  max_depth: int | None  # deepest proposal; None is no limit

  def init(self, key: Array, target_config: Any) -> Any:
    """Random parameters."""

  def tensors(self) -> list[Tensor]:
    """Where each parameter stands in a checkpoint; empty without weights."""

  def start(self, params, target, batch: int, capacity: int) -> Any:
    """The state before anything was read; `capacity` tokens must fit."""

  def begin(
    self, params, target, state, round: Round, ask: Ask
  ) -> tuple[Candidates, Any]:
    """The root's candidates (W = 1) and the round's scratch."""

  def expand(
    self, params, target, scratch, frontier: Frontier
  ) -> tuple[Candidates, Any]:
    """Candidates for the children of the frontier's nodes."""

  def commit(self, params, target, state, scratch, accepted: Accepted) -> Any:
    """The state after a round; `scratch` is None while the prompt is read."""


class Tree(Protocol):
  """Which guesses are worth checking?"""

  ask: Ask
  nodes: int  # rows the target verifies, root included

  def grow(
    self, params, expand: Expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, Any]:
    """Builds the tree below the last committed token."""


class Verify(Protocol):
  """Which guesses may stay?"""

  lossless: bool

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, round: Round
  ) -> Verdict:
    """Walks the tree with the target's logits at every node (float32)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A drafter, a tree and a verifier; one static object."""

  name: str
  drafter: Drafter
  tree: Tree
  verify: Verify

  @property
  def path_rows(self) -> int:
    """Tokens one round can emit at most."""
    return self.tree.ask.depth + 1
