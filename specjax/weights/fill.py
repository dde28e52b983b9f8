"""Leaves from the tensors that stand for their parts, on one device or several.

A leaf is filled slice by slice into one buffer of its own dtype, so that beside
the struct itself there is at most one leaf and one tensor in memory (pages of
the mapped files aside, which the system takes back when it needs them). Of a
leaf that lies on several devices, a process reads what its own devices hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.weights.files import Stored


def leading(shape: tuple[int, ...], parts: int) -> int:
  """How many axes of a leaf count its parts."""
  count, first = 1, 0
  while first < len(shape) - 1 and (count < parts or shape[first] == 1):
    count *= shape[first]
    first += 1
  return first


def fill(leaf: Any, parts: Sequence[Stored], transpose: bool, dtype) -> Any:
  """One leaf, where its sharding wants it.

  Args:
    leaf: an array or a shape.
    parts: its tensors in order.
    transpose: swap the last two axes of each.
    dtype: of the result, where the leaf is floating.
  """
  if not jnp.issubdtype(leaf.dtype, jnp.floating):
    dtype = leaf.dtype
  read: dict[str, np.ndarray] = {}  # several devices may hold the same

  def part_of(index: tuple[slice, ...]) -> np.ndarray:
    key = str(index)
    if key not in read:
      read[key] = _slice(leaf.shape, parts, transpose, dtype, index)
    return read[key]

  sharding = getattr(leaf, 'sharding', None)
  if sharding is None or sharding.num_devices == 1:
    whole = part_of((slice(None),) * len(leaf.shape))
    value = jax.device_put(whole, sharding)
  else:
    value = jax.make_array_from_callback(leaf.shape, sharding, part_of)
  # Waiting bounds the memory: copies to a device are asynchronous.
  return jax.block_until_ready(value)


def _slice(
  shape: tuple[int, ...],
  parts: Sequence[Stored],
  transpose: bool,
  dtype,
  index: tuple[slice, ...],
) -> np.ndarray:
  """A slice of a leaf, of whose tensors no more is read than lies in it."""
  first = leading(shape, len(parts))
  which = np.arange(len(parts)).reshape(shape[:first])[index[:first]]
  spans = [range(n)[i] for n, i in zip(shape, index, strict=True)][first:]
  buffer = np.empty((*which.shape, *map(len, spans)), jnp.dtype(dtype))
  within = [slice(s.start, s.stop) for s in spans]
  if transpose:
    within[-2:] = within[:-3:-1]
  for at in np.ndindex(which.shape):
    content = parts[which[at]].read(within)
    if transpose:
      content = content.swapaxes(-1, -2)
    buffer[at] = content.reshape(buffer.shape[first:])
  return buffer
