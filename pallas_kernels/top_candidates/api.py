"""The likeliest next tokens of a few hidden states."""

from __future__ import annotations

import chex
import jax

from pallas_kernels.dispatch import Backend, call
from pallas_kernels.top_candidates.xla import top_candidates_xla

Array = jax.Array
BACKENDS = (Backend(name='xla', run=top_candidates_xla),)


def top_candidates(
  hidden_BWD: Array, head_VD: Array, count: int, *, backend: str | None = None
) -> tuple[Array, Array]:
  """The `count` best tokens of softmax(hidden @ head^T), best first.

  Equal logits stand in order of id. Probabilities are over all of V.

  Args:
    hidden_BWD: normed hidden states.
    head_VD: output embedding.
    count: C, at most V.
    backend: None lets the platform decide; a name forces that backend.

  Returns:
    token int32[B, W, C] and log-probability float32[B, W, C].

  Raises:
    ValueError: unknown backend, or more candidates than the vocabulary has.
  """
  chex.assert_rank((hidden_BWD, head_VD), (3, 2))
  if not 1 <= count <= head_VD.shape[0]:
    raise ValueError(
      f'{count} candidates asked of a vocabulary of {head_VD.shape[0]}; '
      'ask for at least 1 and at most all.'
    )
  return call(
    'top_candidates', BACKENDS, backend, hidden_BWD, head_VD, count=count
  )
