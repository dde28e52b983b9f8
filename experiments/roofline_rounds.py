"""A round of each method as the passes that the roofline model prices.

What `roofline_model` says of a pass, put together: a drafter is the list of its
passes, which wait for one another; a prediction compares a round with a plain
step on the same device, batch and context.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from experiments.roofline_model import (
  Cost,
  Device,
  Setting,
  head,
  layers,
  projection,
  target_pass,
)
from specjax.checks import check_whole, number
from specjax.models.config import ModelConfig


class Drafter(Protocol):
  """`depth`: longest draft; `passes`: what runs one after the other."""

  @property
  def depth(self) -> int: ...

  def passes(self, target: ModelConfig, at: Setting) -> tuple[Cost, ...]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """DFlash (arXiv:2602.06036) and what shares its pass; TreeFlash.

  One pass over a block, in which the accepted tokens' target features become
  keys and values. `parents` > 0 is TreeFlash (arXiv:2606.03819): the head, then
  a SwiGLU on (depth - 1) parents + 1 rows, and the head on those once more.
  """

  net: ModelConfig
  block: int = 16
  taps: int = 5
  parents: int = 0

  @property
  def depth(self) -> int:
    return self.block - 1

  def passes(self, target: ModelConfig, at: Setting) -> tuple[Cost, ...]:
    width, batch = self.net.width, at.batch
    vocab = at.draft_vocab or target.vocab
    fuse = projection(self.taps * target.width * width, batch * at.accepted)
    body = layers(self.net, at, self.block, fused=at.accepted)
    first = fuse + body + head(width, vocab, batch * self.depth)
    if not self.parents:
      return (first,)
    rows = batch * ((self.depth - 1) * self.parents + 1)
    swiglu = projection(5 * width * self.net.mlp, rows)
    return first, swiglu + head(width, vocab, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3:
  """EAGLE-3 (arXiv:2503.01840): `depth` passes of one layer, own small head.

  The first pass takes the accepted tokens, fused from three target features;
  each later one continues `width` nodes. Queries, keys and values read token
  embedding and feature side by side.
  """

  net: ModelConfig
  depth: int = 7
  width: int = 10
  head_rows: int = 32000

  def passes(self, target: ModelConfig, at: Setting) -> tuple[Cost, ...]:
    vocab = at.draft_vocab or self.head_rows
    wide, batch = self.net.width, at.batch
    first = (
      projection(3 * target.width * wide, batch * at.accepted)
      + layers(self.net, at, at.accepted, inputs=2)
      + head(wide, vocab, batch)
    )
    rows = batch * self.width
    later = layers(self.net, at, self.width, inputs=2) + head(wide, vocab, rows)
    return (first,) + (later,) * (self.depth - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallModel:
  """A model of its own (arXiv:2211.17192): one pass of one row per draft."""

  net: ModelConfig
  depth: int = 4

  def passes(self, target: ModelConfig, at: Setting) -> tuple[Cost, ...]:
    vocab = at.draft_vocab or self.net.vocab
    once = layers(self.net, at, 1) + head(self.net.width, vocab, at.batch)
    return (once,) * self.depth


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookup:
  """Drafts copied from the context: nothing is read."""

  depth: int = 10

  def passes(self, target: ModelConfig, at: Setting) -> tuple[Cost, ...]:
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
  """Milliseconds and what follows from them."""

  plain_ms: float
  draft_ms: float
  verify_ms: float
  bookkeeping_ms: float
  speed_up: float
  tokens_per_s: float  # of the whole batch

  @property
  def round_ms(self) -> float:
    return self.draft_ms + self.verify_ms + self.bookkeeping_ms


def predict(
  target: ModelConfig,
  drafter: Drafter | None,
  device: Device,
  at: Setting,
) -> Prediction:
  """Predicts a round, and the plain step that it is compared with.

  Args:
    target: sizes of the verified model.
    drafter: None is plain decoding.
    device: figures.
    at: rows, tokens per round, batch and context.

  Raises:
    ValueError: figures or counts that cannot be, or more tokens per round than
      the rows or the drafter allow.
  """
  check(drafter, device, at)
  plain_ms = target_pass(target, at, 1).ms(device)
  passes = drafter.passes(target, at) if drafter else ()
  draft_ms = sum(x.ms(device) for x in passes)
  verify_ms = target_pass(target, at, at.nodes).ms(device)
  bookkeeping_ms = at.bookkeeping_us / 1e3 if drafter else 0.0
  round_ms = draft_ms + verify_ms + bookkeeping_ms
  return Prediction(
    plain_ms=plain_ms,
    draft_ms=draft_ms,
    verify_ms=verify_ms,
    bookkeeping_ms=bookkeeping_ms,
    speed_up=at.accepted * plain_ms / round_ms,
    tokens_per_s=1e3 * at.batch * at.accepted / round_ms,
  )


def check(drafter: Drafter | None, device: Device, at: Setting) -> None:
  """Raises ValueError for a setting that cannot be; see `predict`."""
  check_whole(1, nodes=at.nodes, batch=at.batch)
  check_whole(0, context=at.context)
  if at.draft_vocab is not None:
    check_whole(1, draft_vocab=at.draft_vocab)
  for name in ('gb_s', 'tflop_s'):
    value = getattr(device, name)
    if not number(value) or value <= 0:
      raise ValueError(f'{name} is {value!r}; give a number above 0.')
  fixed = dict(launch_us=device.launch_us, bookkeeping_us=at.bookkeeping_us)
  for name, value in fixed.items():
    if not number(value) or value < 0:
      raise ValueError(f'{name} is {value!r}; give a number, 0 or more.')
  depth = drafter.depth if drafter else 0
  check_whole(0 if drafter is None else 1, depth=depth)
  most = min(at.nodes, depth + 1)
  if not number(at.accepted) or not 1 <= at.accepted <= most:
    raise ValueError(
      f'accepted is {at.accepted!r}; {at.nodes} verified rows of drafts up to '
      f'{depth} tokens deep emit 1 to {most} a round.'
    )
