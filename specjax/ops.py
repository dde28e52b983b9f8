"""The kernels' ops on one device, or on every shard of a mesh.

SPMD cannot look into a kernel, and would gather what it is given. So each shard
runs the op on its own rows and heads: the same program on all of them, whatever
backend serves it. Shapes that a mesh axis does not divide stay whole on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from pallas_kernels import top_k as top_k_op
from pallas_kernels.keep_rows import api as keep_rows_op
from pallas_kernels.products import product
from pallas_kernels.top_candidates import api as top_candidates_op
from pallas_kernels.tree_attention import api as tree_attention_op
from specjax import sharding
from specjax.types import Array


def tree_attention(
  q_BTQH: Array,
  cache_k_LBKSH: Array,
  cache_v_LBKSH: Array,
  length_B: Array,
  k_BKNH: Array,
  v_BKNH: Array,
  mask_BTN: Array,
  layer: int | Array,
  *,
  scale: float,
) -> Array:
  """See the op; query heads lie where their key/value heads do."""

  def run(*args):
    *args, layer = args
    return tree_attention_op.tree_attention(*args, layer=layer, scale=scale)

  caches = cache_k_LBKSH, cache_v_LBKSH
  return _per_shard(
    run,
    ('BTQH', 'LBKSH', 'LBKSH', 'B', 'BKNH', 'BKNH', 'BTN', ''),
    'BTQH',
    (q_BTQH, *caches, length_B, k_BKNH, v_BKNH, mask_BTN, jnp.asarray(layer)),
  )


def keep_rows(cache_LBKSH: Array, rows_LBKPH: Array, start_B: Array) -> Array:
  """See the op."""
  return _per_shard(
    keep_rows_op.keep_rows,
    ('LBKSH', 'LBKPH', 'B'),
    'LBKSH',
    (cache_LBKSH, rows_LBKPH, start_B),
  )


def top_candidates(
  hidden_BWD: Array, head_VD: Array, count: int
) -> tuple[Array, Array]:
  """See the op; where the vocabulary is split, each shard names its best."""
  mesh = sharding.active()
  axes = () if mesh is None else sharding.axes_of('V', len(head_VD), mesh)
  run = functools.partial(_best_of_all, count=count, axes=axes)
  if not axes:
    run = functools.partial(top_candidates_op.top_candidates, count=count)
  return _per_shard(run, ('BWD', 'VD'), ('BWC', 'BWC'), (hidden_BWD, head_VD))


def _best_of_all(
  hidden_BWD: Array, head_VD: Array, *, count: int, axes: tuple[str, ...]
) -> tuple[Array, Array]:
  """The op over a vocabulary of which this shard has some rows."""
  token_BWC, logq_BWC = top_candidates_op.top_candidates(
    hidden_BWD, head_VD, min(count, len(head_VD))
  )
  # The op's log-probabilities are of this shard's rows alone: what they were
  # normed by is the best one's logit less its log-probability.
  best_BWD = head_VD[token_BWC[..., 0]]
  best_BW = product('bwd,bwd->bw', hidden_BWD, best_BWD)
  total_BW1 = (best_BW - logq_BWC[..., 0])[..., None]
  logit_BWC, token_BWC = _merged(
    logq_BWC + total_BW1, token_BWC, count, len(head_VD), axes
  )
  total_BW1 = jax.nn.logsumexp(
    _side_by_side(total_BW1, axes), -1, keepdims=True
  )
  return token_BWC, logit_BWC - total_BW1


def top_k(x: Array, k: int, *, vocab: bool = False) -> tuple[Array, Array]:
  """See the op; rows of a batch stay where they are.

  Args:
    x: [B, ...].
    k: entries of the last axis.
    vocab: that axis is V, and may be split: each shard names its best.
  """
  mesh = sharding.active()
  if mesh is None:
    return top_k_op.top_k(x, k)
  size = x.shape[-1]
  axes = sharding.axes_of('V', size, mesh) if vocab else ()
  rows = sharding.axes_of('B', len(x), mesh)
  middle = (None,) * (x.ndim - 2)

  def run(x):
    best, index = top_k_op.top_k(x, min(k, x.shape[-1]))
    return _merged(best, index, k, x.shape[-1], axes) if axes else (best, index)

  return jax.shard_map(
    run,
    in_specs=P(rows or None, *middle, axes or None),
    out_specs=P(rows or None),
    check_vma=False,
  )(x)


def _merged(
  best: Array, index: Array, k: int, size: int, axes: tuple[str, ...]
) -> tuple[Array, Array]:
  """The k best of all shards, each of which has its own and `size` entries."""
  index = index + size * lax.axis_index(axes).astype(index.dtype)
  # In order of shards, so that of equals the lower index still comes first.
  best, index = _side_by_side(best, axes), _side_by_side(index, axes)
  best, at = top_k_op.top_k(best, k)
  return best, jnp.take_along_axis(index, at, -1)


def _side_by_side(x: Array, axes: tuple[str, ...]) -> Array:
  return lax.all_gather(x, axes, axis=x.ndim - 1, tiled=True)


def _per_shard(
  run: Callable[..., Any],
  legends: Sequence[str],
  out: str | tuple[str, ...],
  args: Sequence[Array],
) -> Any:
  """`run(*args)`, by every shard on its own part where there is a mesh."""
  mesh = sharding.active()
  if mesh is None:
    return run(*args)
  sizes = {
    letter: size
    for legend, x in zip(legends, args, strict=True)
    for letter, size in zip(legend, x.shape, strict=True)
  }
  axes = {s: sharding.axes_of(s, sizes.get(s, 1), mesh) or None for s in 'BKV'}
  axes['Q'] = axes['K']
  spec = lambda legend: P(*map(axes.get, legend))
  outs = spec(out) if isinstance(out, str) else tuple(map(spec, out))
  return jax.shard_map(
    run,
    in_specs=tuple(map(spec, legends)),
    out_specs=outs,
    check_vma=False,  # kernels do not tell what varies
  )(*args)
