"""The reference: all logits in float32, then top-k."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.top_k import top_k

Array = jax.Array


def top_candidates_xla(
  hidden_BWD: Array, head_VD: Array, *, count: int
) -> tuple[Array, Array]:
  """See `api.top_candidates`."""
  logits_BWV = jnp.einsum(
    'bwd,vd->bwv', hidden_BWD, head_VD, preferred_element_type=jnp.float32
  )
  total_BW1 = jax.nn.logsumexp(logits_BWV, axis=-1, keepdims=True)
  if count == 1:  # a top-k of one is slower than two reductions
    best_BW1 = jnp.max(logits_BWV, axis=-1, keepdims=True)
    token_BW1 = jnp.argmax(logits_BWV, axis=-1, keepdims=True)
    return token_BW1.astype(jnp.int32), best_BW1 - total_BW1
  best_BWC, token_BWC = top_k(logits_BWV, count)
  return token_BWC.astype(jnp.int32), best_BWC - total_BW1
