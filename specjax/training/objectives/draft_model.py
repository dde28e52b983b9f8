"""Distillation of an independent, smaller language model."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.checks import number
from specjax.drafters import draft_model as draft_model_drafter
from specjax.models.transformer import Weights
from specjax.training import chunked, teacher
from specjax.training.batch import (
  Batch,
  Fixed,
  Metrics,
  asked,
  kept,
  limited,
  moved,
  row_of,
  share,
  token_of,
)
from specjax.types import Array, Head

TERMS = ('kl', 'tv', 'ce')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DraftModel:
  """The small model learns the target's law of every wanted token.

    loss = sum_t (kl KL(p || q) + tv TV(p, q) + ce (- log q(x_t+1))) / number

  over tokens t + 1 that are wanted, in the text of t, and have a row in the
  drafter's head. Zhou et al., "DistillSpec: Improving Speculative Decoding via
  Knowledge Distillation", arXiv:2310.08461, compare divergences and data; TV is
  what acceptance loses: a draft from q is kept with chance sum_v min(p, q) =
  1 - TV (Leviathan et al., arXiv:2211.17192). Ours are the sum of weighted
  terms with KL alone by default, which is stabler than TV, texts as they are
  stored and not drawn from the drafter, and the smaller vocabulary: KL has p
  renormalised over the head's tokens, TV has it as it is.

  Figures: `kl`; `acceptance`, the mean of sum_v min(p, q) at temperature 1; and
  `accuracy`, how often the likeliest token is the target's.
  """

  drafter: draft_model_drafter.DraftModel
  kl: float = 1.0
  tv: float = 0.0
  ce: float = 0.0
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    terms = {name: getattr(self, name) for name in TERMS}
    if not all(number(x) and x >= 0 for x in terms.values()):
      raise ValueError(f'the weights are {terms}; give numbers, 0 or more.')
    if not any(terms.values()):
      raise ValueError(f'all weights are 0; give one of {", ".join(TERMS)}.')

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    del key
    return jnp.sum(_asked(fixed, batch), dtype=jnp.float32)[None]

  def loss(
    self, params: Weights, fixed: Fixed, batch: Batch, key: Any, mass_K: Array
  ) -> tuple[Array, Metrics]:
    del key
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    view = teacher.read(fixed.target, batch, self.drafter.taps)
    terms, figures = _against_target(
      flat(teacher.read_texts(params, batch).hidden_BTD),
      limited(self.drafter.head(params, fixed.target), fixed),
      flat(view.hidden_BTD),
      fixed.target.head,
      flat(moved(batch.token_BT, -1)),
    )
    weight_N = flat(_asked(fixed, batch)).astype(jnp.float32)
    # A term of weight 0 is left out, so that no gradient is made of it.
    parts = [
      getattr(self, name) * terms[name] for name in TERMS if getattr(self, name)
    ]
    loss = jnp.sum(sum(parts) * weight_N) / mass_K[0]
    return loss, {k: share(x, weight_N) for k, x in figures.items()}


def _asked(fixed: Fixed, batch: Batch) -> Array:
  """bool[B, T]: is the next token wanted, of this text, and in the head?"""
  asked_BT = asked(batch)
  if fixed.id_V is not None:
    asked_BT &= jnp.isin(moved(batch.token_BT, -1), fixed.id_V)
  return asked_BT


def _against_target(
  own_ND: Array,
  head: Head,
  teacher_ND: Array,
  teacher_VD: Array,
  token_N: Array,
) -> tuple[dict[str, Array], dict[str, Array]]:
  """(terms of the loss by name, figures by name), each [N].

  `token_N` is the text's next token; one without a row has some other's term.
  """

  def some(own_cD, teacher_cD, token_c):
    full_cV = chunked.logits(teacher_cD, teacher_VD)
    best_c = jnp.argmax(full_cV, axis=1)
    total_c1 = jax.nn.logsumexp(full_cV, axis=1, keepdims=True)
    part_cV = kept(head, full_cV)
    own_cV = chunked.logits(own_cD, head.rows_VD)
    logq_cV = jax.nn.log_softmax(own_cV)
    logp_cV = jax.nn.log_softmax(part_cV)
    kl_c = jnp.sum(jnp.exp(logp_cV) * (logp_cV - logq_cV), axis=1)
    kept_c = jnp.sum(
      jnp.minimum(jnp.exp(part_cV - total_c1), jnp.exp(logq_cV)), axis=1
    )
    row_c, _ = row_of(head, token_c)
    ce_c = -jnp.take_along_axis(logq_cV, row_c[:, None], axis=1)[:, 0]
    mine_c = token_of(head, jnp.argmax(own_cV, axis=1))
    terms = {'kl': kl_c, 'tv': 1 - kept_c, 'ce': ce_c}
    return terms, {
      'kl': kl_c,
      'acceptance': kept_c,
      'accuracy': mine_c == best_c,
    }

  return chunked.over_rows(some, own_ND, teacher_ND, token_N)
