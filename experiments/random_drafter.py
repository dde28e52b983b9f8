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

from experiments import run
from specjax import api
from specjax.models.config import ModelConfig, to_hf
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
  n = target.layers
  spread = [round(1 + i * (n - 4) / max(layers, 1)) for i in range(layers + 1)]
  shared = {
    'vocab_size': target.vocab,
    'hidden_size': target.width,
    'intermediate_size': target.mlp,
    'num_attention_heads': target.q_heads,
    'num_key_value_heads': target.kv_heads,
    'head_dim': target.head_dim,
    'rms_norm_eps': target.eps,
    'max_position_embeddings': target.max_length,
    'torch_dtype': target.dtype,
  }
  block_head = {
    **shared,
    'architectures': ['DFlashDraftModel'],
    'num_hidden_layers': layers,
    'num_target_layers': n,
    'block_size': block,
    'rope_theta': target.rope.theta,
    'dflash_config': {
      'mask_token_id': target.vocab - 1,
      'target_layer_ids': sorted(set(spread)),
    },
  }
  causal = {**block_head['dflash_config'], 'causal_head': True}
  few = max(n // 4, 1)
  small = dataclasses.replace(
    target,
    layers=few,
    sparse_layers=tuple(i for i in target.sparse_layers if i < few),
  )
  return {
    'dflash': block_head,
    'jetspec': {**block_head, 'dflash_config': causal},
    'treeflash': {
      **block_head,
      'architectures': ['TreeFlashDraftModel'],
      'treeflash_config': {'ar_approximation': 'swiglu'},
    },
    'eagle3': {
      **shared,
      'architectures': ['LlamaForCausalLMEagle3'],
      'num_hidden_layers': 1,
      'draft_vocab_size': min(draft_vocab, target.vocab),
      # The usual layers, or for a short target the first ones.
      **({} if n > 8 else {'eagle_aux_hidden_state_layer_ids': [1, 2, n - 1]}),
    },
    'draft_model': to_hf(small),
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
  folder = api.PRETRAINED / 'target'
  if _TARGET.value != 'default':
    folder = pathlib.Path(_TARGET.value).expanduser()
  target = read_config(folder)
  kinds = configs(target, _LAYERS.value, _BLOCK.value, _DRAFT_VOCAB.value)
  write(pathlib.Path(_OUT.value), target, kinds, _SEED.value)
  print(f'{_OUT.value}: {", ".join([*kinds, "taps"])}')


main = run.command(write_all)


if __name__ == '__main__':
  app.run(main)
