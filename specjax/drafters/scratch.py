"""What a drafter that runs step by step has read in one round."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cache as kv
from specjax.tree_ops import take_rows
from specjax.types import Array, Ask, Frontier, Round, static, struct


@struct
class Scratch:
  """Rows of one round: the root, then `ask.width` for each depth below it.

  The buffers keep one size, so all steps share their shapes.
  """

  round: Round
  cache: kv.KVCache  # committed rows
  rows: kv.KVCache  # keys and values of the rows of this round
  above_BNN: Array  # bool, is row j row i or above it?
  own: Any  # what the drafter keeps of each row: arrays [B, N, ...]
  ask: Ask = static()

  def depth_rows(self, depth: int) -> slice:
    """The rows that were fed at one depth."""
    if depth == 0:
      return slice(0, 1)
    first = 1 + (depth - 1) * self.ask.width
    return slice(first, first + self.ask.width)


@struct
class Place:
  """Where a frontier stands among the rows of its round."""

  parent_BW: Array  # int32, a row
  position_BW: Array  # int32, behind the root's token
  mask_BWM: Array  # bool, what it sees of all rows and of itself (M = N + W)


def opened(
  round: Round, cache: kv.KVCache, root: kv.KVCache, own: Any, ask: Ask
) -> Scratch:
  """The scratch with its root: [.., 1, H] rows and [B, 1, ...] arrays of it.

  No row sees the root's: say so with `shows` where it is not in the cache.
  """
  n = 1 + ask.depth * ask.width
  b = round.context.length_B.shape[0]
  grown = lambda axis: (
    lambda x: jnp.pad(x, [(0, (n - 1) * (i == axis)) for i in range(x.ndim)])
  )
  return Scratch(
    round=round,
    cache=cache,
    rows=jax.tree.map(grown(3), root),
    above_BNN=jnp.zeros((b, n, n), bool),
    own=jax.tree.map(grown(1), own),
    ask=ask,
  )


def shows(scratch: Scratch) -> Scratch:
  """The same, its root's row seen by all below."""
  above_BNN = scratch.above_BNN.at[:, 0, 0].set(True)
  return scratch.replace(above_BNN=above_BNN)


def place(scratch: Scratch, frontier: Frontier) -> Place:
  """What the frontier's rows see: their ancestors and themselves.

  Raises:
    ValueError: more rows or a greater depth than the tree asked for.
  """
  b, w = frontier.token_BW.shape
  chex.assert_shape(frontier.row_BW, (b, w))
  if w > scratch.ask.width or not 0 < frontier.depth <= scratch.ask.depth:
    raise ValueError(
      f'a frontier of {w} rows at depth {frontier.depth} exceeds what the '
      f'tree asked for: width {scratch.ask.width}, depth {scratch.ask.depth}.'
    )
  parent_BW = scratch.depth_rows(frontier.depth - 1).start + frontier.row_BW
  above_BWN = take_rows(scratch.above_BNN, parent_BW)
  own_BWW = jnp.broadcast_to(jnp.eye(w, dtype=bool), (b, w, w))
  root_B1 = scratch.round.context.length_B[:, None] - 1
  return Place(
    parent_BW=parent_BW,
    position_BW=jnp.broadcast_to(root_B1 + frontier.depth, (b, w)),
    mask_BWM=jnp.concatenate([above_BWN, own_BWW], axis=2),
  )


def fed(
  scratch: Scratch,
  frontier: Frontier,
  place: Place,
  rows: kv.KVCache,
  own: Any,
) -> Scratch:
  """The scratch with the rows that were made of a frontier."""
  w = frontier.token_BW.shape[1]
  first = scratch.depth_rows(frontier.depth).start
  here = slice(first, first + w)
  n = scratch.above_BNN.shape[1]
  put = lambda x, y: lax.dynamic_update_slice_in_dim(x, y, first, axis=3)
  above_BNN = scratch.above_BNN.at[:, here].set(place.mask_BWM[..., :n])
  return scratch.replace(
    rows=jax.tree.map(put, scratch.rows, rows),
    above_BNN=above_BNN.at[:, here, here].set(place.mask_BWM[..., n:]),
    own=jax.tree.map(lambda x, y: x.at[:, here].set(y), scratch.own, own),
  )
