"""Rewrites an EAGLE-3 drafter in another project's layout.

  python -m experiments.convert_drafter SRC DST --layout specforge --target DIR

SRC is a folder with config.json and safetensors files in any layout, DST is
made, DIR holds the target's config.json (its depth says which layers the
drafter reads). Layouts: `eagle` (SafeAILab/EAGLE), `specforge` (SpecForge and
SGLang), `speculators` (speculators and vLLM). The tensors stay as they are; an
embedding that SRC borrows from the target is not written, and the verifier
that speculators want to be named is left open.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.drafters.eagle3 import layer_ids
from specjax.drafters.eagle3 import weights as eagle3_weights
from specjax.drafters.eagle3.layout import NESTED, PLAIN, Settings, from_hf
from specjax.drafters.eagle3.names import FIRST, IGNORED, SPELT_OUT
from specjax.models.config import ModelConfig
from specjax.models.names import Tensor
from specjax.weights.files import (
  CONFIG,
  WEIGHTS,
  opened,
  read_settings,
  write_json,
)
from specjax.weights.safetensors import (
  load_tensors,
  read_config,
  save_tensors,
  stored_shapes,
)

LAYOUTS = ('eagle', 'specforge', 'speculators')
DTYPES = {'F32': 'float32', 'F16': 'float16', 'BF16': 'bfloat16'}


def convert(
  source: pathlib.Path,
  folder: pathlib.Path,
  layout: str,
  target: ModelConfig,
  *,
  aux: str | None = None,
) -> None:
  """Reads a drafter, and writes it to `folder` in a layout.

  Args:
    source: the drafter's folder.
    folder: made; its files are replaced.
    layout: one of `LAYOUTS`.
    target: what the drafter drafts for.
    aux: how the layer ids of `source` count, see `eagle3.layout.from_hf`.

  Raises:
    ValueError: a drafter that cannot be read, whose maps are wrong, or which
      the layout cannot express.
  """
  shapes = stored_shapes(source)
  given = read_settings(source / CONFIG) | {'tensors': shapes}
  settings = from_hf(given, target, aux=aux)
  config = to_hf(settings, layout, target)
  old, rows = eagle3_weights.tensors(settings), names_in(layout, settings)
  renamed = {
    new: shapes[name]
    for a, b in zip(old, rows, strict=True)
    for name, new in zip(a.names, b.names, strict=True)
  }
  _check_same(settings, config, renamed, target)
  dtype = _dtype(source)
  weights = load_tensors(
    source,
    old,
    eagle3_weights.abstract(settings, dtype),
    dtype,
    ignore=IGNORED,
  )
  id_V = eagle3_weights.bind(settings, weights).id_V
  config |= {'dtype': dtype, 'torch_dtype': dtype}
  folder.mkdir(parents=True, exist_ok=True)
  save_tensors(_as_stored(weights, id_V), rows, folder / WEIGHTS)
  write_json(folder / CONFIG, config)


def names_in(layout: str, settings: Settings) -> list[Tensor]:
  """Where each parameter stands in a layout."""
  rows = eagle3_weights.tensors(dataclasses.replace(settings, stored=()))
  if layout != 'speculators':
    return rows
  spelt = lambda name: name.replace(FIRST, SPELT_OUT, 1)
  return [row._replace(names=tuple(map(spelt, row.names))) for row in rows]


def to_hf(
  settings: Settings, layout: str, target: ModelConfig
) -> dict[str, Any]:
  """The config.json of a drafter.

  Raises:
    ValueError: settings that the layout has no place for.
  """
  if layout not in LAYOUTS:
    raise ValueError(
      f'layout is {layout!r}; choose one of {", ".join(LAYOUTS)}.'
    )
  model, switches = _model(settings), _switches(settings)
  own = {
    'draft_vocab_size': settings.draft_vocab if settings.own_head else None,
    'target_hidden_size': settings.target_width,
    **switches,
  }
  ids = settings.inputs
  if layout == 'eagle':
    _check_plain(settings, switches, target)
    config = {'architectures': [PLAIN]} | model | own
  elif layout == 'specforge':
    outputs = [i - 1 for i in ids]
    config = {'architectures': ['LlamaForCausalLMEagle3']} | model | own
    config['eagle_config'] = {
      layer_ids.KEY: outputs,
      'use_aux_hidden_state': True,
    }
  else:
    config = {
      'architectures': ['Eagle3DraftModel'],
      'speculators_model_type': 'eagle3',
      'speculators_config': {
        'algorithm': 'eagle3',
        'default_proposal_method': 'greedy',
        'proposal_methods': [
          {'proposal_type': 'greedy', 'speculative_tokens': 5}
        ],
        'verifier': {'name_or_path': None, 'architectures': []},
      },
      NESTED: model,
      layer_ids.KEY: list(ids),
    } | own
  return config


def _model(settings: Settings) -> dict[str, Any]:
  """The keys of the drafter's layers, which all layouts share."""
  c = settings.config
  return {
    'model_type': 'qwen3' if c.qk_norm else 'llama',
    'vocab_size': c.vocab,
    'hidden_size': c.width,
    'intermediate_size': c.mlp,
    'num_hidden_layers': c.layers,
    'num_attention_heads': c.q_heads,
    'num_key_value_heads': c.kv_heads,
    'head_dim': c.head_dim,
    'hidden_act': 'silu',
    'rms_norm_eps': c.eps,
    'rope_theta': c.rope.theta,
    'rope_scaling': c.rope.scaling_to_hf(),
    'max_position_embeddings': c.max_length,
    'attention_bias': False,
    'mlp_bias': False,
    'tie_word_embeddings': False,
  }


def _switches(settings: Settings) -> dict[str, bool]:
  """What is not plain EAGLE-3."""
  names = ('norm_before_residual', 'norm_before_fc', 'fc_norm', 'norm_output')
  return {name: True for name in names if getattr(settings, name)}


def _check_plain(
  settings: Settings, switches: dict[str, bool], target: ModelConfig
) -> None:
  """Raises for what the authors' code would run as if it were not there."""
  own = [
    *switches,
    *(['q_norm and k_norm'] if settings.config.qk_norm else []),
    *(['more layers than one'] if settings.config.layers > 1 else []),
  ]
  rule = layer_ids.rule(target.layers)
  if settings.inputs != rule:
    own.append(f'layers {list(settings.inputs)} (there it is {list(rule)})')
  if own:
    raise ValueError(
      f"the layout 'eagle' has no place for {', '.join(own)}; choose another."
    )


def _check_same(
  settings: Settings, config: dict[str, Any], shapes: Any, target: ModelConfig
) -> None:
  """Raises unless the new files are read as this very drafter."""
  read = from_hf(config | {'tensors': shapes}, target)
  plain = lambda s: dataclasses.replace(
    s, stored=(), config=dataclasses.replace(s.config, dtype='float32')
  )
  if plain(read) != plain(settings):
    raise ValueError(
      f'the layout would change the drafter from {settings} to {read}; choose '
      'another.'
    )


def _as_stored(weights, id_V):
  """Maps as others read them: int64 offsets and a bool per token."""
  if weights.d2t_V is None:
    return weights
  size = len(weights.d2t_V)
  row_V = np.arange(size, dtype=np.int64)
  id_V = row_V if id_V is None else np.asarray(id_V, np.int64)
  weights = weights.replace(d2t_V=id_V - row_V)
  if weights.t2d_V is not None:
    weights = weights.replace(t2d_V=np.asarray(weights.t2d_V, bool))
  return weights


def _dtype(source: pathlib.Path) -> str:
  """Of the matrices as they are stored."""
  with opened(source) as stored:
    kinds = {p.dtype for n, p in stored.items() if n.endswith('fc.weight')}
  if len(kinds) != 1 or not kinds <= DTYPES.keys():
    raise ValueError(
      f'{source} stores fc.weight as {sorted(kinds)}; allowed is one of '
      f'{", ".join(DTYPES)}.'
    )
  return jnp.dtype(DTYPES[kinds.pop()]).name


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('source', type=pathlib.Path)
  parser.add_argument('folder', type=pathlib.Path)
  parser.add_argument('--layout', choices=LAYOUTS, required=True)
  parser.add_argument('--target', type=pathlib.Path, required=True)
  parser.add_argument('--aux', choices=layer_ids.READINGS)
  given = parser.parse_args(arguments)
  try:
    target = read_config(given.target)
    convert(given.source, given.folder, given.layout, target, aux=given.aux)
  except ValueError as error:
    sys.exit(f'error: {error}')
  print(f'wrote {given.folder}')


if __name__ == '__main__':
  main()
