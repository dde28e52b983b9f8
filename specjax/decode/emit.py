"""Appends a round's tokens to the rows that are still alive."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.types import Array, DecodeState


def emit(
  state: DecodeState, token_BP: Array, count_B: Array, logits_BPV: Array | None
) -> DecodeState:
  """Commits the first `count` tokens, cut at a stop id or at the cap.

  The earlier of the two wins; a stop id is kept in the text and ends the row,
  also on its last allowed token. A row that is done does not change.

  Args:
    state: before the tokens.
    token_BP: int32, the tokens in order.
    count_B: int32, how many of them the verifier emitted.
    logits_BPV: float32, the target's logits each token was drawn from; read
      only where log-probabilities are kept.
  """
  context = state.context
  index_P = jnp.arange(token_BP.shape[1])
  stops_BP = jnp.any(token_BP[:, :, None] == state.stop_BI[:, None], axis=-1)
  stops_BP &= index_P < count_B[:, None]
  first_stop_B = jnp.where(
    jnp.any(stops_BP, axis=1), jnp.argmax(stops_BP, axis=1) + 1, count_B + 1
  )
  room_B = state.limit_B - context.length_B
  kept_B = jnp.minimum(jnp.minimum(count_B, first_stop_B), room_B)
  kept_B = jnp.where(state.done_B, 0, kept_B).astype(jnp.int32)
  stopped_B = (first_stop_B <= kept_B) & ~state.done_B

  # Beyond `kept` the column is out of range, which drops the write.
  capacity = context.tokens_BT.shape[1]
  column_BP = context.length_B[:, None] + index_P
  column_BP = jnp.where(index_P < kept_B[:, None], column_BP, capacity)
  put = jax.vmap(lambda x_T, i_P, v_P: x_T.at[i_P].set(v_P, mode='drop'))
  logprob_BT = state.logprob_BT
  if logprob_BT is not None:
    logp_BPV = jax.nn.log_softmax(logits_BPV.astype(jnp.float32), axis=-1)
    logp_BP = jnp.take_along_axis(logp_BPV, token_BP[..., None], -1)[..., 0]
    logprob_BT = put(logprob_BT, column_BP, logp_BP)
  length_B = context.length_B + kept_B
  return state.replace(
    context=context.replace(
      tokens_BT=put(context.tokens_BT, column_BP, token_BP), length_B=length_B
    ),
    stopped_B=state.stopped_B | stopped_B,
    done_B=state.done_B | stopped_B | (length_B >= state.limit_B),
    logprob_BT=logprob_BT,
  )
