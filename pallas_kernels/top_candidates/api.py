"""The likeliest next tokens of a few hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import chex
import jax

from pallas_kernels import dispatch
from pallas_kernels.top_candidates import tpu, triton
from pallas_kernels.top_candidates.xla import top_candidates_xla

Array = jax.Array
BACKENDS = (
  dispatch.triton(triton.top_candidates_triton, triton.refuses),
  dispatch.tpu(tpu.top_candidates_tpu, tpu.refuses),
  dispatch.Backend(name='xla', run=top_candidates_xla),
)


def top_candidates(
  hidden_BWD: Array,
  head_VD: Array,
  count: int,
  *,
  backend: str | Sequence[str] | None = None,
) -> tuple[Array, Array]:
  """The `count` best tokens of softmax(hidden @ head^T), best first.

  Equal logits stand in order of id. Probabilities are over all of V.

  Args:
    hidden_BWD: normed hidden states.
    head_VD: output embedding.
    count: C, at most V.
    backend: 'triton' (Ampere and later), 'tpu', 'xla'; None, a name or names
      in order, see `dispatch.call`.

  Returns:
    token int32[B, W, C] and log-probability float32[B, W, C].

  Raises:
    ValueError: unknown backend, or more candidates than the vocabulary has.
    NotImplementedError: a backend that was asked for cannot do this call.
  """
  chex.assert_rank((hidden_BWD, head_VD), (3, 2))
  if not 1 <= count <= head_VD.shape[0]:
    raise ValueError(
      f'{count} candidates asked of a vocabulary of {head_VD.shape[0]}; '
      'ask for at least 1 and at most all.'
    )
  return dispatch.call(
    'top_candidates', BACKENDS, backend, hidden_BWD, head_VD, count=count
  )
