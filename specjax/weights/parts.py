"""Drafters and learned trees from their checkpoints."""

from __future__ import annotations

from typing import Any

import jax

from specjax import sharding
from specjax.models.config import ModelConfig
from specjax.models.transformer import abstract
from specjax.weights.safetensors import Path, load_tensors


def load_drafter(
  drafter: Any, folder: Path, config: ModelConfig, dtype, *, mesh: Any = None
) -> Any:
  """A drafter's tensors as its checkpoint holds them; see `load_part`."""
  width = 1
  if mesh is not None:
    shapes, target = _shapes(drafter, config), abstract(config, dtype)
    width = sharding.head_dim(drafter, shapes, target)
  # Publishers disagree on whether names begin with `model.`.
  return load_part(
    drafter, folder, config, dtype, prefix='model.', mesh=mesh, head_dim=width
  )


def load_part(
  part: Any,
  folder: Path,
  config: ModelConfig,
  dtype,
  *,
  prefix: str = '',
  mesh: Any = None,
  head_dim: int = 1,
) -> Any:
  """The tensors of a drafter or a tree as a checkpoint holds them.

  Args:
    part: with `init` and `tensors`, see `specjax.method`.
    folder: of the checkpoint, or one file.
    config: of the target.
    dtype: of floating-point leaves.
    prefix: names are found with and without it.
    mesh: each device gets its share; None is one device.
    head_dim: width of the part's heads, where there is a mesh.

  Raises:
    ValueError: see `load_tensors`.
  """
  return load_tensors(
    folder,
    part.tensors(),
    sharding.planned(_shapes(part, config), mesh, head_dim),
    dtype,
    optional_prefix=prefix,
    ignore=getattr(part, 'ignore', ()),
  )


def _shapes(part: Any, config: ModelConfig) -> Any:
  return jax.eval_shape(lambda key: part.init(key, config), jax.random.key(0))
