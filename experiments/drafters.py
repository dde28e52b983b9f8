"""Drafters to be trained: where they begin, and how they are written."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from experiments import shapes
from specjax.method import Binds, Method
from specjax.models.config import ModelConfig
from specjax.models.transformer import Weights
from specjax.packaged import RANKS
from specjax.types import Array
from specjax.vocab.fr_spec import FrSpec
from specjax.vocab.ranks import chosen, cut, save_ranks
from specjax.weights.files import (
  CONFIG,
  WEIGHTS,
  but_dtypes,
  read_settings,
  write_json,
)
from specjax.weights.leaves import cast
from specjax.weights.parts import load_drafter
from specjax.weights.safetensors import save_tensors, stored_shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """A drafter before its first step."""

  config: Mapping[str, Any]  # config.json
  method: Method
  init: Callable[[], Any]  # its parameters, as the decode loop reads them


def begin(
  drafter: Any, build: Callable[..., Method], target: Weights, seed: int
) -> Start:
  """A new drafter of some shape, or the one in a folder.

  Args:
    drafter: an object of `experiments.shapes`, or a folder.
    build: a method's.
    target: what it drafts for.
    seed: of a new one's parameters.

  Raises:
    ValueError: a drafter that does not fit the target or the method.
  """
  if isinstance(drafter, (str, pathlib.Path)):
    return _from_folder(pathlib.Path(drafter).expanduser(), build, target)
  config = drafter.config(target.config)
  method = build(target.config, config)
  key = shapes.key_of(seed)
  return Start(
    config=config,
    method=method,
    init=lambda: drafter.init(method, target, key),
  )


def _from_folder(folder: pathlib.Path, build, target: Weights) -> Start:
  if not folder.is_dir():
    raise ValueError(f'there is no drafter {folder}.')
  config = read_settings(folder / CONFIG)
  stored = stored_shapes(folder)
  method = build(target.config, {**config, 'tensors': stored})

  def init() -> Any:
    params = load_drafter(method.drafter, folder, target.config, jnp.float32)
    if isinstance(method.drafter, Binds):
      return method.drafter.bind(params, target)
    return params

  return Start(config=config, method=method, init=init)


def vocab_of(given: FrSpec | None, drafter: Any) -> FrSpec | None:
  """The list that a drafter is trained on: as given, or as it was before."""
  if given is None and isinstance(drafter, (str, pathlib.Path)):
    path = pathlib.Path(drafter).expanduser() / RANKS
    return FrSpec(ranks=path) if path.exists() else None
  return given


def ids_of(
  vocab: FrSpec | None, method: Method, target: ModelConfig
) -> Array | None:
  """int32, rising: the list's ids; None for all.

  Raises:
    ValueError: a list that does not fit the target or the drafter.
  """
  if vocab is None:
    return None
  vocab.check(method, target)
  return jnp.sort(jnp.asarray(chosen(vocab.ranks, vocab.size, target.vocab)))


def check_out(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  """That a model with this config.json may be written there, or again.

  Raises:
    ValueError: the folder holds another model, or is none.
  """
  if folder.is_file():
    raise ValueError(f'out is the file {folder}; give a folder.')
  path = folder / CONFIG
  if not path.exists():
    return
  if but_dtypes(read_settings(path)) != but_dtypes(config):
    raise ValueError(
      f'{folder} holds another model, which is left as it is; give another out '
      'folder.'
    )


def save(
  folder: pathlib.Path,
  method: Method,
  config: Mapping[str, Any],
  params: Any,
  dtype: str,
  vocab: FrSpec | None = None,
  tokens: int = 0,
) -> None:
  """Writes a drafter's folder, its weights in `dtype`.

  With the list that it was trained on, out of the target's `tokens`:
  `specjax.load` takes it from there.
  """
  unbind = getattr(method.drafter, 'unbind', None)
  params = params if unbind is None else unbind(params)
  folder.mkdir(parents=True, exist_ok=True)
  save_tensors(cast(params, dtype), method.drafter.tensors(), folder / WEIGHTS)
  if vocab is not None:
    save_ranks(cut(vocab.ranks, vocab.size, tokens), folder / RANKS)
  write_json(folder / CONFIG, {**config, 'dtype': dtype, 'torch_dtype': dtype})
