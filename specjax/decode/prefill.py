"""Prompt in, state out: cache, drafter state and the first token."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax import sampling as sampling_lib
from specjax import sharding
from specjax.decode.emit import emit
from specjax.method import Method
from specjax.models import cache as kv
from specjax.models.layers import unembed
from specjax.models.transformer import forward
from specjax.tree_ops import causal, take_rows
from specjax.types import (
  Accepted,
  Array,
  Context,
  DecodeState,
  Params,
  Sampling,
)

CHUNK = 256


def bucket_for(length: int) -> int:
  """Tokens a prompt is padded to, so that new lengths do not recompile."""
  for size in (32, 64, 128):
    if length <= size:
      return size
  return -(-length // CHUNK) * CHUNK


def capacity_for(method: Method, prompt: int, new_tokens: int) -> int:
  """Cache slots that a prompt and its answer need; a bucket itself.

  A round writes a whole path behind the committed tokens, so that many slots
  must stand behind the last of them: JAX clamps a write out of range and would
  spoil committed rows silently.
  """
  needed = prompt + new_tokens + method.path_rows
  return kv.slots_for(max(needed, bucket_for(prompt)))


@functools.partial(jax.jit, static_argnames=('method', 'capacity', 'logprobs'))
def prefill(
  method: Method,
  params: Params,
  token_BT: Array,
  length_B: Array,
  key_B: Array,
  sampling: Sampling,
  stop_BI: Array,
  limit_B: Array,
  *,
  capacity: int,
  logprobs: bool = False,
) -> DecodeState:
  """Reads prompts in chunks and emits each row's first token.

  Args:
    method: taps and drafter decide what is remembered.
    params: target, drafter and tree parameters.
    token_BT: int32, prompts padded on the right to a bucket.
    length_B: int32, at least 1.
    key_B: PRNG keys, see `sampling.row_keys`.
    sampling: per-row settings.
    stop_BI: int32 stop ids, -1 padded.
    limit_B: int32, prompt and answer together; at least length + 1.
    capacity: slots, see `capacity_for`.
    logprobs: keep the emitted tokens' log-probabilities.

  Returns:
    The state before the first round. Logits exist for one row per prompt only.
  """
  b, bucket = token_BT.shape
  chunk = min(bucket, CHUNK)
  if bucket % chunk or capacity < bucket:
    raise ValueError(
      f'a prompt bucket of {bucket} needs chunks of {chunk} and as many slots '
      f'(capacity is {capacity}); use bucket_for and capacity_for.'
    )
  target = params.target
  mask_BTT = causal(b, chunk)

  def read(carry, first):
    cache, draft, last_BD = carry
    token_BP = lax.dynamic_slice_in_dim(token_BT, first, chunk, axis=1)
    # As if it could be anything: where there is one chunk, XLA would know it at
    # compile time, and fold attention to an empty cache element by element.
    start_B = jnp.where(length_B >= 0, first, 0)
    position_BP = first + jnp.broadcast_to(jnp.arange(chunk), (b, chunk))
    out = forward(
      target,
      token_BP,
      position_BP,
      cache,
      jnp.minimum(start_B, length_B),
      mask_BTT,
      taps=method.drafter.taps,
    )
    accepted = Accepted(
      token_BP=token_BP,
      start_B=start_B,
      length_B=jnp.clip(length_B - first, 0, chunk),
      taps_BPE=out.taps_BTE,
    )
    draft = method.drafter.commit(params.drafter, target, draft, None, accepted)
    at_B = length_B - 1 - first
    here_B1 = ((at_B >= 0) & (at_B < chunk))[:, None]
    row_B = jnp.clip(at_B, 0, chunk - 1)
    row_BD = take_rows(out.hidden_BTD, row_B)
    last_BD = jnp.where(here_B1, row_BD, last_BD)
    return (kv.write(cache, out.rows, start_B), draft, last_BD), None

  carry = (
    kv.empty(target.config, b, capacity, target.dtype),
    method.drafter.start(params.drafter, target, b, capacity),
    jnp.zeros((b, target.config.width), target.dtype),
  )
  firsts = jnp.arange(0, bucket, chunk, dtype=jnp.int32)
  (cache, draft, last_BD), _ = lax.scan(read, carry, firsts)

  logits_B1V = unembed(last_BD[:, None], target.head)
  noise_B1V = None
  if not sampling.all_greedy:
    noise_B1V = sampling_lib.noise(key_B, length_B, 1, logits_B1V.shape[-1])
  first_B1 = sampling_lib.draw(logits_B1V, sampling, noise_B1V)
  state = DecodeState(
    context=Context(
      tokens_BT=jnp.zeros((b, capacity), jnp.int32)
      .at[:, :bucket]
      .set(token_BT),
      length_B=length_B,
    ),
    cache=cache,
    draft=draft,
    key_B=key_B,
    sampling=sampling,
    stop_BI=stop_BI,
    limit_B=limit_B,
    done_B=jnp.zeros((b,), bool),
    stopped_B=jnp.zeros((b,), bool),
    rounds_B=jnp.zeros((b,), jnp.int32),
    walk_BR=jnp.zeros((b, capacity), jnp.int32),
    logprob_BT=jnp.zeros((b, capacity), jnp.float32) if logprobs else None,
  )
  state = emit(state, first_B1, jnp.ones((b,), jnp.int32), logits_B1V)
  return sharding.constrained(state)
