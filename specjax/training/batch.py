"""What an objective gets and what it must answer."""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp

from specjax.models.transformer import Weights
from specjax.types import Array, Head, struct

Metrics = dict[str, Array]  # float32[2]: a sum and what to divide it by


@struct
class Batch:
  """Texts as ids; several may stand in one row, behind one another.

  What the target says of them is stored beside them or left out; then
  `teacher.read` computes it.
  """

  token_BT: Array  # int32
  wanted_BT: Array  # bool, tokens to be drafted: answers and their ends
  text_BT: Array  # int32, which text of the row, from 1; 0 is padding
  position_BT: Array  # int32, from 0 in every text
  taps_BTE: Array | None = None  # the layers that the drafter reads, in order
  hidden_BTD: Array | None = None  # after the final norm, as the head reads it


@struct
class Fixed:
  """What a step reads and never changes.

  `id_V` limits the drafter to those tokens of the target, rising; their rows
  of the target's head then stand in for all.
  """

  target: Weights | None  # None: the model that is trained is the target
  id_V: Array | None = None  # int32


class Objective(Protocol):
  """What one optimiser step minimises; frozen, hashable, without arrays.

  A loss is a sum over positions divided by their number (or weight), and both
  run over all micro-batches of a step. So the divisors are summed up first,
  from masks alone, and no split into micro-batches changes the step.
  """

  frozen: tuple[str, ...]  # fields of the parameters that stay as they are

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    """float32[K]: the divisors of the loss's K terms, for these rows."""

  def loss(
    self, params: Any, fixed: Fixed, batch: Batch, key: Array, mass_K: Array
  ) -> tuple[Array, Metrics]:
    """This batch's share of the loss (float32[]), and figures to report.

    Args:
      params: the drafter's, in the dtype of compute.
      key: the one given to `mass` with this batch: what is drawn is the same.
      mass_K: sums of `mass` over the step's micro-batches.
    """


def limited(head: Head, fixed: Fixed) -> Head:
  """A drafter's output rows, cut to `fixed.id_V` where that is set.

  A head that names its tokens already keeps them.
  """
  if fixed.id_V is None or head.id_V is not None:
    return head
  return Head(head.rows_VD[fixed.id_V], fixed.id_V)


def row_of(head: Head, token: Array) -> tuple[Array, Array]:
  """(row, has one): where a head proposes these tokens (int32 of any shape)."""
  if head.id_V is None:
    return token, jnp.ones(token.shape, bool)
  row = jnp.searchsorted(head.id_V, token)
  row = jnp.minimum(row, len(head.id_V) - 1)
  return row, head.id_V[row] == token


def token_of(head: Head, row: Array) -> Array:
  """The reverse: what these rows propose (int32 of any shape)."""
  row = row.astype(jnp.int32)
  return row if head.id_V is None else head.id_V[row]


def kept(head: Head, x_NV: Array) -> Array:
  """Columns of the target's tokens, cut to those of the head."""
  return x_NV if head.id_V is None else x_NV[:, head.id_V]


def moved(x_BT: Array, by: int) -> Array:
  """Entries so many places later (earlier, below 0); zeros come in."""
  t = x_BT.shape[1]
  by = max(-t, min(by, t))
  pad = [(0, 0)] * x_BT.ndim
  pad[1] = (max(by, 0), max(-by, 0))
  return jnp.pad(x_BT[:, max(-by, 0) : t - max(by, 0)], pad)


def goes_on(batch: Batch, places: int = 1) -> Array:
  """bool[B, T]: is the token so many places on one of the same text?"""
  text_BT = batch.text_BT
  return (moved(text_BT, -places) == text_BT) & (text_BT > 0)


def asked(batch: Batch, places: int = 1) -> Array:
  """bool[B, T]: is that token to be drafted as well?"""
  return goes_on(batch, places) & moved(batch.wanted_BT, -places)


def share(sum_N: Array, weight_N: Array) -> Array:
  """A pair of `Metrics`: a weighted sum and its weight."""
  total = jnp.sum(jnp.where(weight_N > 0, sum_N, 0) * weight_N)
  return jnp.stack([total, jnp.sum(weight_N)]).astype(jnp.float32)
