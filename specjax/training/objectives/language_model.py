"""A language model from texts: how the packaged target is trained."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax.models.transformer import Weights
from specjax.training import chunked
from specjax.training.batch import (
  Batch,
  Fixed,
  Metrics,
  goes_on,
  moved,
  share,
)
from specjax.training.teacher import read_texts
from specjax.types import Array, Head


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel:
  """Cross-entropy of every next token, prompts included.

  loss = - sum_t log p(x_t+1 | x_<=t) / number of t, over pairs within a text.
  """

  frozen: tuple[str, ...] = ()

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    del fixed, key
    return jnp.sum(goes_on(batch), dtype=jnp.float32)[None]

  def loss(
    self, params: Weights, fixed: Fixed, batch: Batch, key: Any, mass_K: Array
  ) -> tuple[Array, Metrics]:
    del fixed, key
    hidden_BTD = read_texts(params, batch).hidden_BTD
    label_N = moved(batch.token_BT, -1).reshape(-1)
    logp_NA, best_N = chunked.log_probs(
      hidden_BTD.reshape(len(label_N), -1), Head(params.head), label_N[:, None]
    )
    weight_N = goes_on(batch).reshape(-1).astype(jnp.float32)
    loss = -jnp.sum(logp_NA[:, 0] * weight_N) / mass_K[0]
    return loss, {
      'nats': share(-logp_NA[:, 0], weight_N),
      'accuracy': share(best_N == label_N, weight_N),
    }
