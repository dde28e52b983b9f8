"""Low-rank adapters of a transformer's last layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax.models.layers import Layer, Mlp
from specjax.models.transformer import Weights
from specjax.types import Array, struct

ATTENTION = ('q_OD', 'k_OD', 'v_OD', 'o_DO')
MLP = ('gate_FD', 'up_FD', 'down_DF')


@struct
class Pair:
  """Two thin matrices whose product is added to a matrix [out, in].

  Axes: layers (the last ones of their stack), rank, and the matrix's own.
  """

  a_LAI: Array  # float32, A is the rank
  b_LOA: Array  # float32, zero at the start


Adapters = dict[str, dict[str, Pair]]  # stack, then matrix


def init(weights: Weights, key: Array, *, rank: int, last: int) -> Adapters:
  """Adapters of all seven linear maps of the last layers; they add nothing.

  Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models",
  arXiv:2106.09685: a is drawn, b is zero.

  Raises:
    ValueError: more layers than there are, no rank, or experts.
  """
  layers = weights.config.layers
  if not 1 <= last <= layers or rank < 1:
    raise ValueError(
      f'rank is {rank} and last {last}; rank is at least 1 and last 1 to '
      f'{layers}, the layers of the drafter.'
    )
  adapters, left = {}, last
  for at in reversed(range(len(weights.layers))):
    stack = weights.layers[at]
    count = min(left, stack.attn_norm_D.shape[0])
    if not count:
      break
    if not isinstance(stack.mlp, Mlp):
      raise ValueError('adapters of experts are not supported.')
    left -= count
    pairs = {}
    for i, (name, w_LOI) in enumerate(_matrices(stack).items()):
      _, out, inner = w_LOI.shape
      draw = jax.random.normal(
        jax.random.fold_in(key, at * 7 + i), (count, rank, inner)
      )
      pairs[name] = Pair(
        a_LAI=draw * inner**-0.5, b_LOA=jnp.zeros((count, out, rank))
      )
    adapters[str(at)] = pairs
  return adapters


def merge(weights: Weights, adapters: Adapters, scale: float) -> Weights:
  """The weights with the products added; scale is the papers' alpha / rank."""
  layers = list(weights.layers)
  for at, pairs in adapters.items():
    stack = layers[int(at)]
    added = {
      name: _added(w_LOI, pairs[name], scale)
      for name, w_LOI in _matrices(stack).items()
    }
    layers[int(at)] = stack.replace(
      **{name: added[name] for name in ATTENTION},
      mlp=stack.mlp.replace(**{name: added[name] for name in MLP}),
    )
  return weights.replace(layers=tuple(layers))


def _added(w_LOI: Array, pair: Pair, scale: float) -> Array:
  delta_LOI = scale * jnp.einsum('loa,lai->loi', pair.b_LOA, pair.a_LAI)
  first = w_LOI.shape[0] - delta_LOI.shape[0]
  return w_LOI.at[first:].add(delta_LOI.astype(w_LOI.dtype))


def _matrices(stack: Layer) -> dict[str, Any]:
  return {n: getattr(stack, n) for n in ATTENTION} | {
    n: getattr(stack.mlp, n) for n in MLP
  }
