"""Sizes of an EAGLE-3 drafter: its shapes against its config.json."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from specjax.checks import check_whole
from specjax.models.config import ModelConfig

ATTENTION = 'midlayer.self_attn'
# Whose rows or columns are sizes.
MATRICES = frozenset(
  (
    *('fc.weight', 'lm_head.weight', 'embed_tokens.weight'),
    *(f'{ATTENTION}.{x}_proj.weight' for x in 'qk'),
    'midlayer.mlp.gate_proj.weight',
  )
)

Shapes = Mapping[str, tuple[int, ...]]


def sizes_of(
  flat: Mapping[str, Any],
  shapes: Shapes | None,
  fused: int,
  target: ModelConfig,
) -> dict[str, int]:
  """Sizes by their keys: what shapes say, else what the configuration says.

  The number of query heads is the one size that no shape shows.

  Args:
    flat: the configuration, nested keys on top.
    shapes: of the tensors by their canonical names; None: not known.
    fused: target layers.
    target: for what the configuration leaves out.

  Raises:
    ValueError: keys that are missing, or shapes of no EAGLE-3 drafter.
  """
  needed = ('hidden_size', 'num_attention_heads', 'intermediate_size')
  missing = [key for key in needed if flat.get(key) is None]
  if missing:
    raise ValueError(f'the configuration lacks {", ".join(missing)}.')
  optional = (
    *('num_hidden_layers', 'head_dim', 'num_key_value_heads'),
    *('target_hidden_size', 'vocab_size', 'draft_vocab_size'),
  )
  given = {key: flat.get(key) for key in (*needed, *optional)}
  check_whole(1, **{k: x for k, x in given.items() if x is not None})
  width, heads = flat['hidden_size'], flat['num_attention_heads']
  usual = {
    'hidden_size': width,
    'intermediate_size': flat['intermediate_size'],
    'num_hidden_layers': 1,
    'head_dim': width // heads,
    'num_key_value_heads': heads,
    'target_hidden_size': width,
    'vocab_size': target.vocab,
  }
  said = {key: flat.get(key) or value for key, value in usual.items()}
  said['draft_vocab_size'] = flat.get('draft_vocab_size') or said['vocab_size']
  if shapes is None:
    return said
  found = said | _shown(shapes, heads, fused)
  for key, value in found.items():
    if flat.get(key) not in (None, value):
      warnings.warn(
        f'the drafter has {key}={flat[key]}, but its tensors {value}, which '
        'counts.',
        stacklevel=4,
      )
  return found


def _shown(shapes: Shapes, heads: int, fused: int) -> dict[str, int]:
  """What the shapes say."""
  for name in MATRICES & shapes.keys():
    if len(shapes[name]) != 2:
      raise ValueError(
        f'{name} has shape {list(shapes[name])}, which is no matrix; give an '
        'intact checkpoint.'
      )
  q, k = (shapes[f'{ATTENTION}.{x}_proj.weight'] for x in 'qk')
  width, features = shapes['fc.weight']
  if q[1] != 2 * width:
    raise ValueError(
      f'q_proj reads {q[1]} numbers; in EAGLE-3 those are embedding and '
      f'feature, {2 * width}.'
    )
  if q[0] % heads or k[0] % (q[0] // heads) or features % fused:
    raise ValueError(
      f'q_proj {list(q)}, k_proj {list(k)} and fc {[width, features]} do not '
      f'divide into {heads} heads (num_attention_heads) and {fused} fused '
      'layers; correct the config.json.'
    )
  layers = {int(m[1]) for x in shapes if (m := re.match(r'layers\.(\d+)\.', x))}
  found = {
    'hidden_size': width,
    'intermediate_size': shapes['midlayer.mlp.gate_proj.weight'][0],
    'num_hidden_layers': 1 + len(layers),
    'head_dim': q[0] // heads,
    'num_key_value_heads': k[0] // (q[0] // heads),
    'target_hidden_size': features // fused,
  }
  rows = [shapes[x][0] for x in ('lm_head.weight', 'd2t') if x in shapes]
  if rows:
    found['draft_vocab_size'] = rows[0]
  rows = [shapes[x][0] for x in ('embed_tokens.weight', 't2d') if x in shapes]
  if rows:
    found['vocab_size'] = rows[0]
  return found
