"""Safetensors files to parameter structs and back, one leaf at a time.

The rows of `specjax.models.names` say which tensors fill which leaf; this file
knows no model. A leaf is put on its devices before the next is read, see
`weights.fill`. No torch is needed.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sharding
from specjax.models.config import ModelConfig, from_hf, to_hf
from specjax.models.names import Tensor, target_tensors
from specjax.models.transformer import Weights, abstract
from specjax.weights.files import (
  CONFIG,
  WEIGHTS,
  Stored,
  opened,
  read_settings,
  write_json,
  write_tensors,
)
from specjax.weights.fill import fill, leading
from specjax.weights.leaves import leaves_by_path

EMBEDDING, HEAD = 'model.embed_tokens.weight', 'lm_head.weight'
NO_PARAMETER = ('*rotary_emb.inv_freq',)
FLOATS = ('F64', 'F32', 'F16', 'BF16')
INTEGERS = ('I64', 'I32', 'I16', 'I8', 'U64', 'U32', 'U16', 'U8', 'BOOL')

Path = str | os.PathLike


def read_config(folder: Path) -> ModelConfig:
  """The configuration of a target's folder.

  Raises:
    ValueError: no or unreadable config.json, or a model that is not supported.
  """
  return from_hf(read_settings(pathlib.Path(folder) / CONFIG))


def stored_shapes(source: Path) -> dict[str, tuple[int, ...]]:
  """Shape of every tensor of a checkpoint by its stored name."""
  with opened(pathlib.Path(source)) as stored:
    return {name: part.shape for name, part in stored.items()}


def load_target(
  folder: Path, *, dtype=None, stacked: bool, mesh: Any = None
) -> Weights:
  """Reads a Hugging Face folder of a Qwen3, Qwen3-MoE or LLaMA model.

  Args:
    folder: holds config.json and model.safetensors, or shards and their index.
    dtype: of the parameters; None keeps the checkpoint's.
    stacked: like layers stacked for scan, or one by one (faster on CPU).
    mesh: each device gets its part, see `specjax.sharding`.

  Raises:
    ValueError: see `read_config` and `load_tensors`.
  """
  config = read_config(folder)
  dtype = jnp.dtype(config.dtype if dtype is None else dtype)
  shapes = abstract(config, dtype, stacked=stacked)
  shapes = sharding.planned(shapes, mesh, config.head_dim)
  rows = target_tensors(config, stacked)
  return load_tensors(folder, rows, shapes, dtype, optional_prefix='model.')


def load_tensors(
  source: Path,
  rows: Sequence[Tensor],
  shapes: Any,
  dtype,
  *,
  optional_prefix: str = '',
  ignore: Sequence[str] = (),
) -> Any:
  """Fills a tree of shapes from a checkpoint.

  An `lm_head.weight` for which there is no row is no error where it repeats
  the embedding, as tied checkpoints may store it; nor are rotary frequencies.

  Args:
    source: a folder, or one .safetensors file.
    rows: one per leaf of `shapes`, in any order.
    shapes: tree of arrays or `ShapeDtypeStruct`s; a leaf's sharding is obeyed.
    dtype: of all floating-point leaves; others keep the one in `shapes`.
    optional_prefix: names are found with and without it ('model.').
    ignore: patterns of stored names that need no row ('*.bias').

  Returns:
    `shapes` with arrays on the device.

  Raises:
    ValueError: a file that is missing or damaged, by name; or all tensors that
      are missing, unexpected or of another shape or kind, in one message.
  """
  leaves, tree = leaves_by_path(shapes)
  row_of = _check_rows(rows, leaves)
  with opened(pathlib.Path(source)) as stored:
    parts_of, problems = _match(stored, row_of, leaves, optional_prefix, ignore)
    if problems:
      raise ValueError(
        f'{source} does not hold the expected tensors:\n  '
        + '\n  '.join(problems)
        + '\nUse the checkpoint that the configuration belongs to.'
      )
    filled = [
      fill(leaf, parts_of[path], row_of[path].transpose, dtype)
      for path, leaf in leaves.items()
    ]
  return jax.tree_util.tree_unflatten(tree, filled)


def save_target(weights: Weights, folder: Path) -> None:
  """Writes config.json and model.safetensors as Hugging Face lays them out.

  Each file is replaced as a whole. The configuration's dtype becomes the one
  of the weights.

  Raises:
    ValueError: a configuration that config.json cannot express.
  """
  folder = pathlib.Path(folder)
  config = dataclasses.replace(
    weights.config, dtype=jnp.dtype(weights.dtype).name
  )
  settings = to_hf(config)  # raises before anything is written
  folder.mkdir(parents=True, exist_ok=True)
  rows = target_tensors(config, stacked=len(weights.layers) < config.layers)
  save_tensors(weights, rows, folder / WEIGHTS)
  write_json(folder / CONFIG, settings)


def save_tensors(tree: Any, rows: Sequence[Tensor], file: Path) -> None:
  """Writes the leaves of a tree to one file; the reverse of `load_tensors`.

  Raises:
    ValueError: rows and leaves do not fit.
  """
  leaves, _ = leaves_by_path(tree)
  row_of = _check_rows(rows, leaves)
  tensors = {}
  for path, leaf in leaves.items():
    row, leaf = row_of[path], np.asarray(jax.device_get(leaf))
    shape = _part_shape(leaf.shape, row)
    for name, part in zip(
      row.names, leaf.reshape(len(row.names), *shape), strict=True
    ):
      if row.transpose:
        part = part.swapaxes(-1, -2)
      tensors[name] = np.ascontiguousarray(part)
  write_tensors(file, tensors, {'format': 'pt'})


def _check_rows(rows: Sequence[Tensor], leaves: Mapping) -> dict[str, Tensor]:
  row_of = {row.path: row for row in rows}
  wrong = sorted(set(row_of) ^ set(leaves))
  if wrong:
    raise ValueError(
      f'each leaf needs one row; leaf or row without the other: {wrong}.'
    )
  return row_of


def _part_shape(shape: tuple[int, ...], row: Tensor) -> tuple[int, ...]:
  """Shape of each of a leaf's parts (before transposing).

  The axes that count the parts come first; leading ones belong to a stack of
  one layer. So tensors that really start with a one lose it, which `_same`
  takes into account.
  """
  first = leading(shape, len(row.names))
  if math.prod(shape[:first]) != len(row.names):
    raise ValueError(
      f'leaf {row.path} of shape {shape} has no room for exactly '
      f'{len(row.names)} tensors.'
    )
  return shape[first:]


def _stored_shape(shape: tuple[int, ...], row: Tensor) -> tuple[int, ...]:
  part = _part_shape(shape, row)
  return (*part[:-2], part[-1], part[-2]) if row.transpose else part


def _same(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
  """Equal but for leading ones."""
  n = max(len(a), len(b))
  pad = lambda x: (1,) * (n - len(x)) + tuple(x)
  return pad(a) == pad(b)


def _match(stored, row_of, leaves, prefix, ignore):
  """(parts of each leaf by path, what does not fit)."""
  problems, parts_of, used = [], {}, set()
  for path, row in row_of.items():
    leaf = leaves[path]
    shape = _stored_shape(leaf.shape, row)
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    found = [_find(stored, name, prefix) for name in row.names]
    for name, part in zip(row.names, found, strict=True):
      if part is None:
        problems.append(f'missing: {name}, expected {list(shape)}')
      else:
        problems += _misfits(part, shape, floating)
    parts_of[path] = found
    used |= {part.name for part in found if part is not None}
  for name in sorted(set(stored) - used):
    problems += _unexpected(name, stored, used, prefix, ignore)
  return parts_of, problems


def _misfits(part: Stored, shape: tuple[int, ...], floating: bool) -> list:
  problems = []
  if not _same(part.shape, shape):
    problems.append(
      f'wrong shape: {part.name}, stored {list(part.shape)}, '
      f'expected {list(shape)}'
    )
  if part.dtype not in (FLOATS if floating else INTEGERS):
    kind = ', '.join(FLOATS if floating else INTEGERS)
    problems.append(
      f'wrong dtype: {part.name}, stored {part.dtype}, expected one of {kind}'
    )
  return problems


def _unexpected(name: str, stored, used, prefix: str, ignore) -> list:
  if any(fnmatch.fnmatch(name, p) for p in (*NO_PARAMETER, *ignore)):
    return []
  problem = f'unexpected: {name}, stored {list(stored[name].shape)}'
  embed = _find(stored, EMBEDDING, prefix)
  if name == HEAD and embed is not None and embed.name in used:
    if np.array_equal(stored[name].read(), embed.read()):
      return []
    problem += ' (no copy of the embedding, though both are tied)'
  return [problem]


def _find(stored: Mapping[str, Stored], name: str, prefix: str):
  for spelt in (name, prefix + name, name.removeprefix(prefix)):
    if spelt in stored:
      return stored[spelt]
  return None
