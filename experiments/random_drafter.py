"""Drafters with random weights, to time methods for which none is trained.

  python -m experiments.random_drafter --target=smollm2 --out=random

Writes a folder per kind, in its published layout: `dflash`, `treeflash`,
`jetspec`, `eagle3`, `draft_model`, and `taps`, a scorer on `dflash`. What they
draft is noise, so nothing is accepted; a round takes as long as with trained
weights of these sizes.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from absl import app, flags

from experiments import run, shapes
from specjax import api, packaged
from specjax.drafters.eagle3.fresh import config_of
from specjax.models.config import ModelConfig
from specjax.weights.files import CONFIG, WEIGHTS, write_json
from specjax.weights.safetensors import read_config, save_tensors
from specjax.weights.scorer import save_scorer

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder, or default.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'Folder to write to.', required=True, flag_values=_FLAGS
)
_LAYERS = flags.DEFINE_integer(
  'layers', 2, 'Of the block drafters.', flag_values=_FLAGS
)
_BLOCK = flags.DEFINE_integer(
  'block', 16, 'Anchor and masks of a block.', flag_values=_FLAGS
)
_DRAFT_VOCAB = flags.DEFINE_integer(
  'draft_vocab', 32000, "EAGLE-3's, at most.", flag_values=_FLAGS
)
_SEED = flags.DEFINE_integer('seed', 0, 'Of the weights.', flag_values=_FLAGS)


def configs(
  target: ModelConfig, layers: int, block: int, draft_vocab: int
) -> dict[str, dict[str, Any]]:
  """config.json of each kind, by folder."""
  shape = shapes.Block(layers=layers, block=block)
  change = lambda **changes: dataclasses.replace(shape, **changes)
  return {
    'dflash': shape.config(target),
    'jetspec': change(causal=True).config(target),
    'treeflash': change(treeflash=True).config(target),
    'eagle3': config_of(target, min(draft_vocab, target.vocab)),
    'draft_model': shapes.Small(layers=max(target.layers // 4, 1)).config(
      target
    ),
  }


def write(
  out: pathlib.Path, target: ModelConfig, kinds: Mapping[str, Any], seed: int
) -> None:
  """Writes every kind, and TAPS's scorer."""
  key = jax.random.key(seed)
  for i, (name, config) in enumerate(kinds.items()):
    method = api.build_of(name)(target, config)
    weights = method.drafter.init(jax.random.fold_in(key, i), target)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(weights, method.drafter.tensors(), folder / WEIGHTS)
    write_json(folder / CONFIG, config)
  taps = api.build_of('taps')(target, kinds['dflash'])
  scorer = taps.tree.init(jax.random.fold_in(key, len(kinds)), target)
  save_scorer(scorer, out / 'taps', taps, target)


def write_all() -> None:
  """What the flags ask for."""
  target = read_config(packaged.target_folder(_TARGET.value))
  kinds = configs(target, _LAYERS.value, _BLOCK.value, _DRAFT_VOCAB.value)
  write(pathlib.Path(_OUT.value), target, kinds, _SEED.value)
  print(f'{_OUT.value}: {", ".join([*kinds, "taps"])}')


main = run.command(write_all)


if __name__ == '__main__':
  app.run(main)
