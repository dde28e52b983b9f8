"""Whose texts these are: a target, its weights, tokenizer and template."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.models.config import ModelConfig, to_hf
from specjax.models.transformer import Weights
from specjax.weights.files import but_dtypes

PROBES = (
  'She sold 48/2 = 24 clips in May.\n\n#### 72',
  'def f(x):\n\treturn [i ** 2 for i in range(x)]  # é 漢字 🙂',
)


def target_fingerprint(config: ModelConfig) -> dict[str, Any]:
  """What a target is, in the words of its config.json."""
  return but_dtypes(to_hf(config))


def weights_fingerprint(weights: Weights) -> str:
  """Sixteen hex digits of 64 numbers of every matrix and norm of each layer.

  The same in float32 and bfloat16, stacked or not: numbers count as bfloat16.
  """
  parts = {}
  rest = weights.replace(layers=())
  for path, leaf in jax.tree_util.tree_leaves_with_path(rest):
    parts[f'/{jax.tree_util.keystr(path)}'] = _some(leaf[None])[0]
  first = 0
  for stack in weights.layers:
    for path, leaf in jax.tree_util.tree_leaves_with_path(stack):
      for i, some in enumerate(_some(leaf), start=first):
        parts[f'{i}{jax.tree_util.keystr(path)}'] = some
    first += stack.attn_norm_D.shape[0]
  return digest(
    b''.join(k.encode() + parts[k].tobytes() for k in sorted(parts))
  )


def template_fingerprint(tokenizer: Any) -> str:
  """Sixteen hex digits of a tokenizer's ids for some texts, and its template.

  The template counts as it stands: what it renders may hold the date.
  """
  facts = [
    tokenizer.vocab_size,
    list(tokenizer.eos_ids),
    [list(tokenizer.encode(text)) for text in PROBES],
    getattr(tokenizer, 'template', None),
    getattr(tokenizer, 'special', None),
  ]
  return digest(json.dumps(facts, sort_keys=True).encode())


def check_maker(
  folder: Any,
  manifest: dict[str, Any],
  config: ModelConfig | None,
  tokenizer: Any,
  weights: Weights | None,
) -> None:
  """Raises ValueError for another target or template, naming both sides."""
  maker, advice = manifest['target'], 'make one with this target.'
  if maker is not None and config is not None:
    ours = target_fingerprint(config)
    other = [k for k, v in maker['config'].items() if ours.get(k) != v]
    other += [k for k in ours if k not in maker['config']]
    if other:
      was = ', '.join(f'{k}={maker["config"].get(k)}' for k in other)
      now = ', '.join(f'{k}={ours.get(k)}' for k in other)
      raise ValueError(
        f'{folder} was made by the target {maker["name"]} ({was}), and this '
        f'one has {now}; {advice}'
      )
  if maker is not None and weights is not None:
    now = weights_fingerprint(weights)
    if now != maker['weights']:
      raise ValueError(
        f'{folder} was made by the target {maker["name"]} with weights '
        f'{maker["weights"]}, and this one has {now}; {advice}'
      )
  if tokenizer is not None:
    was, now = manifest['template'], template_fingerprint(tokenizer)
    if now != was['fingerprint']:
      raise ValueError(
        f'{folder} was made with the tokenizer and template of {was["name"]} '
        f'({was["fingerprint"]}), and this target has others ({now}); {advice}'
      )


def _some(leaf_L: jax.Array) -> np.ndarray:
  """Up to 64 numbers of each layer's leaf, spread over it."""
  flat = leaf_L.reshape(leaf_L.shape[0], -1)
  step = max(flat.shape[1] // 64, 1)
  return np.asarray(flat[:, ::step][:, :64].astype(jnp.bfloat16))


def texts_fingerprint(texts: Any) -> str:
  """Of texts or of ids, in lists or by number: what JSON takes."""
  return digest(json.dumps(texts).encode())


def digest(data: bytes) -> str:
  """Sixteen hex digits."""
  return hashlib.sha256(data).hexdigest()[:16]
