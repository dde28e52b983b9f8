"""Tile sizes of the kernels, chosen from shapes.

They are rules of thumb: none was measured on a device.
"""

from __future__ import annotations

import dataclasses

from jax.experimental import pallas as pl

# Programs that keep a large GPU busy: two for each of its 132 cores.
PROGRAMS = 264


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
  """`rows` x `slots` logits at a time; a cache is read in `splits` parts."""

  rows: int
  slots: int
  splits: int
  stages: int = 2  # tiles in flight
  warps: int = 4


def splits(heads: int, row_blocks: int, slots: int, capacity: int) -> int:
  """Parts that fill a device, each of at least four tiles of the cache."""
  wanted = -(-PROGRAMS // (heads * row_blocks))
  return max(1, min(wanted, capacity // (4 * slots)))


def triton(heads: int, r: int, capacity: int, itemsize: int) -> Tiles:
  """A Triton program needs powers of two, and 16 rows for a matrix unit.

  With 64 rows four warps run out of registers on an A100, says its compiler.
  """
  rows = min(max(pl.next_power_of_2(r), 16), 64)
  slots = 128 // itemsize
  blocks = -(-r // rows)
  return Tiles(
    rows=rows,
    slots=slots,
    splits=splits(heads, blocks, slots, capacity),
    warps=8 if rows == 64 else 4,
  )


def mosaic_gpu(heads: int, r: int, capacity: int) -> Tiles:
  """A warpgroup's product has 64 rows."""
  blocks = -(-r // 64)
  return Tiles(
    rows=64, slots=64, splits=splits(heads, blocks, 64, capacity), stages=3
  )


def tpu(r: int, capacity: int) -> Tiles:
  """One core walks the cache in order: there is nothing to split for."""
  slots = capacity
  for size in (512, 256, 128):
    if capacity % size == 0:
      slots = size
      break
  return Tiles(rows=r if r <= 256 else 256, slots=slots, splits=1)
