"""Weights and decode states that nothing was computed for.

How long a round takes hangs on shapes and hardly on values. So a state in the
middle of a text need not be decoded to be timed, and what a piece begins from
need not be there: both are made of shapes, without a program of the model's
size. Values are random and no zeros, which would cost a device less power; they
repeat, since billions of draws would take more memory than the model.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from specjax.decode.prefill import bucket_for, capacity_for
from specjax.inputs import make_rows
from specjax.method import Method, bind
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.models.config import ModelConfig
from specjax.types import Array, Context, DecodeState, Params
from specjax.weights.leaves import floating

PERIOD = 1_000_003  # no multiple of a width, so that rows differ


def target(config: ModelConfig) -> transformer.Weights:
  """Weights in the config's dtype, made on the device; layers in stacks."""

  def made(path, x):
    if 'norm' in jax.tree_util.keystr(path[-1:]):
      return jnp.ones(x.shape, x.dtype)
    return _noise(x.shape, x.dtype, 0.02)

  shapes = transformer.abstract(config, config.dtype)
  return jax.tree_util.tree_map_with_path(made, shapes)


def params(method: Method, weights: transformer.Weights, key: Array) -> Params:
  """A method's, with random ones of its drafter; its tree learns nothing."""
  make = lambda key: method.drafter.init(key, weights.config)
  return bind(method, Params(target=weights, drafter=jax.jit(make)(key)))


def state(
  method: Method,
  params: Params,
  *,
  batch: int,
  context: int,
  new_tokens: int,
) -> DecodeState:
  """As if `context` tokens had been read; greedy rows that are not done."""
  config, vocab = params.target.config, params.target.config.vocab
  rows = make_rows(
    [[i * 31 % vocab for i in range(context)]] * batch,
    vocab=vocab,
    max_length=config.max_length,
    max_new_tokens=new_tokens,
  )
  token_BT, length_B, key_B, sampling, stop_BI, limit_B = rows.arrays(
    bucket_for(context)
  )
  capacity = capacity_for(method, context, new_tokens)
  missing = capacity - token_BT.shape[1]
  none_B = jnp.zeros((batch,), bool)
  dtype = params.target.dtype
  draft = method.drafter.start(params.drafter, params.target, batch, capacity)
  return DecodeState(
    context=Context(
      tokens_BT=jnp.pad(token_BT, ((0, 0), (0, missing))), length_B=length_B
    ),
    cache=_noised(kv.empty(config, batch, capacity, dtype)),
    draft=_noised(draft),
    key_B=key_B,
    sampling=sampling,
    stop_BI=stop_BI,
    limit_B=limit_B,
    done_B=none_B,
    stopped_B=none_B,
    rounds_B=jnp.zeros((batch,), jnp.int32),
    walk_BR=jnp.zeros((batch, capacity), jnp.int32),
  )


def outcome(f, *args: Any) -> Any:
  """Arrays as `f(*args)` returns them: random, ones, or true.

  Indices of 1 are in range wherever there are two of a thing.
  """
  return jax.tree.map(_filled, jax.eval_shape(f, *args))


def _filled(x: jax.ShapeDtypeStruct) -> Array:
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.split(jax.random.key(0), x.shape)
  if floating(x):
    return _noise(x.shape, x.dtype, 1.0)
  return jnp.ones(x.shape, x.dtype)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _noise(shape: tuple[int, ...], dtype, scale: float) -> Array:
  size = math.prod(shape)
  few = min(size, PERIOD)
  draw = scale * jax.random.normal(jax.random.key(1), (few,), dtype)
  many = jnp.broadcast_to(draw, (-(-size // few), few)).reshape(-1)
  return many[:size].reshape(shape)


def _noised(tree: Any) -> Any:
  """The same counts, and random values."""
  return jax.tree.map(lambda x: _filled(x) if floating(x) else x, tree)
