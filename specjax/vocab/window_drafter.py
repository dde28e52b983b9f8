"""An independent draft model as `alignment` trains it: over short windows.

Letters: N positions, A ids that are asked for, T tokens of a window.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.models import cache as kv
from specjax.models import transformer
from specjax.tree_ops import take_rows
from specjax.types import Array, Head, struct
from specjax.vocab import lora
from specjax.vocab.alignment import Draft


@struct
class Window:
  """Tokens up to a position, for a drafter that reads nothing else."""

  token_NT: Array  # int32
  last_N: Array  # int32, column of the position


def draft_model(
  weights: transformer.Weights, head: Head, scale: float
) -> Draft:
  """An independent model behind a list, read teacher-forced over `Window`s.

  The window is its whole context and begins at position 0: rotary attention
  knows distances only. Rows that sequences have of their own are left out.
  """

  def draft(adapters, example: Window, id_NA: Array) -> Array:
    adapted = lora.merge(weights, adapters, scale)
    n, t = example.token_NT.shape
    out = transformer.forward(
      adapted,
      example.token_NT,
      jnp.broadcast_to(jnp.arange(t), (n, t)),
      kv.empty(weights.config, n, 1, weights.dtype),
      jnp.zeros(n, jnp.int32),
      jnp.broadcast_to(jnp.tril(jnp.ones((t, t), bool)), (n, t, t)),
    )
    hidden_ND = take_rows(out.hidden_BTD, example.last_N)
    logits_NV = jnp.einsum(
      'nd,vd->nv', hidden_ND, head.rows_VD, preferred_element_type=jnp.float32
    )
    logq_NV = jax.nn.log_softmax(logits_NV, axis=-1)
    if head.id_V is None:
      return jnp.take_along_axis(logq_NV, id_NA, axis=1)
    row_NA = jnp.searchsorted(head.id_V, id_NA)
    row_NA = jnp.minimum(row_NA, len(head.id_V) - 1)
    logq_NA = jnp.take_along_axis(logq_NV, row_NA, axis=1)
    return jnp.where(head.id_V[row_NA] == id_NA, logq_NA, -jnp.inf)

  return draft


def windows(token_T: Array, position_N: Array, size: int) -> Window:
  """The tokens of a text up to and with each position, `size` at most."""
  first_N = jnp.maximum(position_N - size + 1, 0)
  at_NT = first_N[:, None] + jnp.arange(size)
  token_NT = token_T[jnp.minimum(at_NT, token_T.shape[0] - 1)]
  return Window(token_NT=token_NT, last_N=position_N - first_N)
