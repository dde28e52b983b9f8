"""The few forms a Hopper kernel needs beyond plain jnp.

Values in registers have a layout that the hardware's products ask for. Pallas'
interpreter (jax 0.10.2) knows neither layouts nor products of registers, so
tests hand the kernel a `Machine` with plain forms of the same five functions:
that checks indices, masks, barriers and the merge, and nothing of the rest,
which only a compile for the device does.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclasses.dataclass(frozen=True)
class Machine:
  """How a kernel makes, loads and multiplies values.

  Attributes:
    full: (shape, value) -> float32, one or two axes.
    iota: (shape, axis) -> int32.
    load_rows: (ref in global memory, index) -> one value per row.
    dot: (values [M, K], tile [K, N]) -> float32[M, N].
    dot_t: (tile [M, K], tile [N, K]) -> float32[M, N].
    interpret: what `plgpu.kernel` takes.
  """

  full: Callable[..., Any]
  iota: Callable[..., Any]
  load_rows: Callable[..., Any]
  dot: Callable[..., Any]
  dot_t: Callable[..., Any]
  interpret: Any = None


def swizzled(width: int):
  """How a tile of 16-bit values lies on chip: the widest swizzle that fits."""
  swizzle = next(s for s in (128, 64, 32) if 2 * width % s == 0)
  return (
    plgpu.TilingTransform((8, swizzle // 2)),
    plgpu.SwizzleTransform(swizzle),
  )


def _full(shape, value):
  layout = plgpu.Layout.WGMMA
  if len(shape) == 1:
    layout = layout.reduce(1)
  return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def _iota(shape, axis):
  return plgpu.broadcasted_iota(
    jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA
  )


def _load_rows(ref, index):
  # jax 0.12 takes the index with the reference only.
  old = 'idx' in inspect.signature(plgpu.load).parameters
  return plgpu.load(
    ref.at[index],
    *([()] if old else []),
    layout=plgpu.Layout.WGMMA.reduce(1),
    optimized=False,
  )


def _dot(a, b_tile):
  return _product(a, b_tile, (a.shape[0], b_tile.shape[1]))


def _dot_t(a_tile, b_tile):
  shape = (a_tile.shape[0], b_tile.shape[0])
  return _product(a_tile, b_tile.T, shape)


def _product(a, b_tile, shape):
  def into(sum_ref):
    plgpu.wgmma(sum_ref, a, b_tile)
    return sum_ref[...]

  return pl.run_scoped(into, plgpu.ACC(shape, jnp.float32))


HOPPER = Machine(
  full=_full, iota=_iota, load_rows=_load_rows, dot=_dot, dot_t=_dot_t
)
