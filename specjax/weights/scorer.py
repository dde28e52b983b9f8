"""A learned tree's weights on disk, with what they were trained for."""

from __future__ import annotations

import pathlib
from typing import Any

from specjax.models.config import ModelConfig
from specjax.weights.files import CONFIG, WEIGHTS, read_settings, write_json
from specjax.weights.safetensors import Path, save_tensors


def settings(method: Any, target: ModelConfig) -> dict[str, Any]:
  """What a scorer of this method depends on; all of it decides its inputs."""
  return {
    'target_width': target.width,
    'target_vocab': target.vocab,
    'drafter_taps': list(method.drafter.taps),
    'block': method.tree.depth + 1,
    'fanout': method.tree.fanout,
    'pool': method.tree.pool,
  }


def save_scorer(
  params: Any, folder: Path, method: Any, target: ModelConfig
) -> None:
  """Writes config.json and model.safetensors; each is replaced as a whole.

  Args:
    params: of the tree, as `LearnedTree.init` makes them (not bound).
    folder: made where it is missing.
    method: a `Method` with a learned tree, such as TAPS.
    target: the target's configuration.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  save_tensors(params, method.tree.tensors(), folder / WEIGHTS)
  write_json(folder / CONFIG, settings(method, target))


def check_scorer(folder: Path, method: Any, target: ModelConfig) -> None:
  """Compares a scorer's config.json; a folder without one is not judged.

  Raises:
    ValueError: a scorer for something else; names both sides of each key.
  """
  path = pathlib.Path(folder) / CONFIG
  if not path.exists():
    return
  stored = read_settings(path)
  wrong = [
    f'{key} is {stored[key]}, here it is {here}'
    for key, here in settings(method, target).items()
    if key in stored and stored[key] != here
  ]
  if wrong:
    raise ValueError(
      f'{path} belongs to another setting: {"; ".join(wrong)}. Use the scorer '
      'that was trained for this target, drafter and pool, or the options it '
      'was trained with.'
    )
