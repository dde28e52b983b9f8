"""The three parts of a method: what might come, what to check, what may stay.

All parts are frozen, hashable objects, so that a `Method` is a static argument
of jit. Arrays never live in them: they are in `Params` and in `DecodeState`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from specjax.checks import number
from specjax.models.names import Tensor
from specjax.types import (
  Accepted,
  Array,
  Ask,
  Candidates,
  Frontier,
  Head,
  Params,
  Round,
  TokenTree,
  Verdict,
)

SHARPNESS = (1.0,)  # of coupled drafts, unless told otherwise

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

  def head(self, params, target) -> Head | None:
    """The rows its candidates come from; None for a drafter without."""

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


@runtime_checkable
class LearnedTree(Tree, Protocol):
  """A tree with parameters of its own; they are `Params.tree`."""

  def init(self, key: Array, target_config: Any) -> Any:
    """Random parameters, as they stand in a checkpoint."""

  def tensors(self) -> list[Tensor]:
    """Where each of them stands in a checkpoint."""


@runtime_checkable
class Binds(Protocol):
  """A drafter or tree that reads other arrays than its checkpoint holds."""

  def bind(self, params: Any, target: Any) -> Any:
    """What its loop reads, made once from those and the target's weights.

    Raises:
      ValueError: values that contradict one another or the target.
    """


@runtime_checkable
class Vocabulary(Protocol):
  """What `specjax.load(vocab=...)` takes: limits what a drafter may propose."""

  def check(self, method: Method, target_config: Any) -> None:
    """Raises ValueError for what can be seen without weights to be wrong."""

  def wrap(self, method: Method, params: Params) -> tuple[Method, Params]:
    """The method with its drafter wrapped, and parameters to match."""


@runtime_checkable
class SizedTree(Tree, Protocol):
  """A tree whose first rows are trees too, of which each round takes one."""

  sizes: tuple[int, ...]  # rows verified, root included, rising to `nodes`

  def choose(self, params: Any, tree: TokenTree, round: Round) -> Array:
    """int32[]: an index into `sizes`, one for the whole batch."""


class Verify(Protocol):
  """Which guesses may stay?"""

  lossless: bool

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, round: Round
  ) -> Verdict:
    """Walks the tree with the target's logits at every node (float32)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """A drafter, a tree and a verifier; one static object.

  `sharpness` couples the drafts to the verifier's noise where a row samples,
  see `candidates.top_candidates`: one number per depth, the last for all that
  are deeper; None drafts as if greedy.
  """

  name: str
  drafter: Drafter
  tree: Tree
  verify: Verify
  sharpness: tuple[float, ...] | None = None

  def __post_init__(self):
    if self.sharpness is None:
      return
    if not self.sharpness or not all(
      number(s) and s > 0 for s in self.sharpness
    ):
      raise ValueError(
        f'sharpness is {self.sharpness}; give numbers above 0, one per depth.'
      )
    if self.tree.ask.fanout is None:
      raise ValueError(
        'drafts that look at the noise of the verifier are no draws from the '
        "drafter's law; couple them with rule='follow', or not at all."
      )

  @property
  def path_rows(self) -> int:
    """Tokens one round can emit at most."""
    return self.tree.ask.depth + 1


def sharpness_of(coupled: bool | float | Sequence[float]) -> Any:
  """`Method.sharpness` of a build function's `coupled`.

  True takes `SHARPNESS`, False drafts as if greedy; numbers are taken as given.

  Raises:
    ValueError: none of these, or a number that is not finite and above 0.
  """
  if isinstance(coupled, (bool, np.bool_)):
    return SHARPNESS if coupled else None
  several = isinstance(coupled, (list, tuple)) or np.ndim(coupled) == 1
  values = tuple(coupled) if several else (coupled,)
  if not values or not all(number(s) and s > 0 for s in values):
    raise ValueError(
      f'coupled is {coupled!r}; give True, False, a number above 0, or a list '
      'of such numbers, one per depth.'
    )
  return tuple(map(float, values))


def bind(method: Method, params: Params, *, drafter: bool = True) -> Params:
  """Parameters as checkpoints hold them, made into those that loops read.

  `drafter=False`: the drafter's are made already.
  """
  made = lambda part, x: (
    part.bind(x, params.target) if isinstance(part, Binds) else x
  )
  return params.replace(
    drafter=made(method.drafter, params.drafter) if drafter else params.drafter,
    tree=made(method.tree, params.tree),
  )
