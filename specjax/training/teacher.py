"""What the frozen target says of a batch: tapped layers and hidden states."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from specjax.models import cache as kv
from specjax.models import transformer
from specjax.training.batch import Batch
from specjax.types import Array, struct


@struct
class Teacher:
  taps_BTE: Array  # outputs of the tapped layers, side by side
  hidden_BTD: Array  # after the final norm; row t predicts token t + 1


def sees(batch: Batch) -> Array:
  """bool[B, T, T]: the same text, and not later."""
  same_BTT = batch.text_BT[:, :, None] == batch.text_BT[:, None, :]
  t = batch.token_BT.shape[1]
  return same_BTT & jnp.tril(jnp.ones((t, t), bool))


def read_texts(
  weights: transformer.Weights, batch: Batch, taps: tuple[int, ...] = ()
) -> transformer.Output:
  """A pass of a language model over a batch; texts do not see one another."""
  b = batch.token_BT.shape[0]
  return transformer.forward(
    weights,
    batch.token_BT,
    batch.position_BT,
    kv.empty(weights.config, b, 1, weights.dtype),
    jnp.zeros(b, jnp.int32),
    sees(batch),
    taps=taps,
  )


def read(
  target: transformer.Weights, batch: Batch, taps: tuple[int, ...]
) -> Teacher:
  """The target's view, stored with the batch or computed; no gradient."""
  taps_BTE, hidden_BTD = batch.taps_BTE, batch.hidden_BTD
  if taps_BTE is None or hidden_BTD is None:
    out = read_texts(target, batch, taps)
    taps_BTE, hidden_BTD = out.taps_BTE, out.hidden_BTD
  dtype = target.dtype
  return jax.tree.map(
    lambda x: lax.stop_gradient(x.astype(dtype)),
    Teacher(taps_BTE=taps_BTE, hidden_BTD=hidden_BTD),
  )
