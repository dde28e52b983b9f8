"""Losses over many rows of logits that never stand in memory together.

Rows are taken a few at a time; what the forward pass computed for them is
thrown away and computed again for the gradient (`jax.checkpoint`). Letters: N
rows, A ids that are asked for per row, V rows of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.products import product
from specjax.training.batch import kept, row_of, token_of
from specjax.types import Array, Head

CHUNK = 1024


def over_rows(
  function: Callable[..., Any], *arrays: Any, chunk: int = CHUNK
) -> Any:
  """`function` of the arrays, for so many of their rows at a time.

  Args:
    function: maps trees of arrays [c, ...] to a tree of arrays [c, ...], row by
      row. What it closes over may carry gradients.
    *arrays: trees of arrays with one leading axis N.
    chunk: rows at a time; the last lot is padded with zeros.
  """
  n = jax.tree.leaves(arrays)[0].shape[0]
  chunk = min(chunk, n)
  lots = -(-n // chunk)

  def split(x):
    pad = [(0, lots * chunk - n)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, pad).reshape(lots, chunk, *x.shape[1:])

  body = jax.checkpoint(lambda lot: function(*lot))
  out = lax.map(body, jax.tree.map(split, arrays))
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n], out)


def logits(hidden_ND: Array, rows_VD: Array) -> Array:
  """float32[N, V]."""
  return product('nd,vd->nv', hidden_ND, rows_VD)


def log_probs(
  hidden_ND: Array, head: Head, id_NA: Array, *, chunk: int = CHUNK
) -> tuple[Array, Array]:
  """(float32[N, A], int32[N]): log q of these ids, and the likeliest token.

  q is the softmax over the head's rows; an id without a row has -inf, whose
  gradient is 0.
  """

  def some(hidden_cD, id_cA):
    logq_cV = jax.nn.log_softmax(logits(hidden_cD, head.rows_VD))
    row_cA, there_cA = row_of(head, id_cA)
    logq_cA = jnp.take_along_axis(logq_cV, row_cA, axis=1)
    best_c = token_of(head, jnp.argmax(logq_cV, axis=1))
    return jnp.where(there_cA, logq_cA, -jnp.inf), best_c

  return over_rows(some, hidden_ND, id_NA, chunk=chunk)


def divergence(
  hidden_ND: Array,
  head: Head,
  teacher_ND: Array,
  teacher_VD: Array,
  *,
  reverse: bool = False,
  heat: float = 1.0,
  chunk: int = CHUNK,
) -> tuple[Array, Array]:
  """(float32[N], bool[N]): KL(p || q), or KL(q || p), and whether both agree.

  Args:
    hidden_ND: the drafter's, normed; gradients flow into these.
    head: the drafter's rows. Where they are fewer than the target's, p is
      renormalised over their tokens; whether both agree is still of the
      target's own likeliest token.
    teacher_ND: the target's, normed; no gradient.
    teacher_VD: the target's head.
    reverse: KL(q || p).
    heat: temperature of both.
    chunk: rows at a time.
  """
  value_N, mine_N, best_N = directed(
    hidden_ND,
    head,
    teacher_ND,
    teacher_VD,
    jnp.full(len(hidden_ND), reverse),
    heat=heat,
    chunk=chunk,
  )
  return value_N, mine_N == best_N


def directed(
  hidden_ND: Array,
  head: Head,
  teacher_ND: Array,
  teacher_VD: Array,
  reverse_N: Array,
  *,
  heat: float = 1.0,
  chunk: int = CHUNK,
) -> tuple[Array, Array, Array]:
  """`divergence` with a direction for each row.

  Returns:
    float32[N]; and int32[N] the likeliest tokens of q and of p.
  """

  def some(hidden_cD, teacher_cD, reverse_c):
    full_cV = logits(teacher_cD, teacher_VD)
    best_c = jnp.argmax(full_cV, axis=1).astype(jnp.int32)
    logp_cV = jax.nn.log_softmax(kept(head, full_cV) / heat)
    logp_cV = lax.stop_gradient(logp_cV)
    own_cV = logits(hidden_cD, head.rows_VD)
    logq_cV = jax.nn.log_softmax(own_cV / heat)
    back_c1 = reverse_c[:, None]
    weight_cV = jnp.exp(jnp.where(back_c1, logq_cV, logp_cV))
    gap_cV = jnp.where(back_c1, logq_cV - logp_cV, logp_cV - logq_cV)
    mine_c = token_of(head, jnp.argmax(own_cV, axis=1))
    return jnp.sum(weight_cV * gap_cV, axis=1), mine_c, best_c

  return over_rows(some, hidden_ND, teacher_ND, reverse_N, chunk=chunk)
