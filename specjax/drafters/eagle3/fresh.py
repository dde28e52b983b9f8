"""A new EAGLE-3 drafter for a target, to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.drafters.eagle3 import weights as eagle3_weights
from specjax.drafters.eagle3.layer_ids import KEY, rule
from specjax.drafters.eagle3.layout import from_hf
from specjax.drafters.eagle3.weights import Weights
from specjax.models import transformer
from specjax.models.config import ModelConfig
from specjax.types import Array


def fresh(
  target: transformer.Weights,
  key: Array,
  *,
  id_V: Any = None,
  changes: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Weights]:
  """(config.json, parameters as a checkpoint holds them).

  `methods.eagle3.build` takes the first, the drafter's `bind` the second. Head
  and last norm are copies of the target's, which predict tokens from features
  of this kind; the authors draw their head at random. The rest is random.

  Args:
    target: what it will draft for.
    key: of the random parameters.
    id_V: the tokens it drafts, int[V], rising; None: all of them. The authors
      take those that answers of the training texts hold most often.
    changes: keys of config.json that are not as `config_of` sets them.

  Raises:
    ValueError: tokens that the target lacks or that do not rise, or settings
      that do not fit.
  """
  vocab = target.config.vocab
  id_V = _checked(id_V, vocab)
  config = config_of(target.config, len(id_V)) | dict(changes or {})
  settings = from_hf(config, target.config)
  if settings.own_embedding or not settings.own_head:
    raise ValueError(
      'a new drafter has the width and the embedding of its target and a head '
      f'of its own; with {dict(changes or {})} it has not.'
    )
  if settings.draft_vocab != len(id_V):
    raise ValueError(
      f'draft_vocab_size is {settings.draft_vocab}, and id_V has {len(id_V)} '
      'tokens; leave the first out.'
    )
  params = eagle3_weights.init(settings, key).replace(
    norm_D=jnp.copy(target.norm_D),
    head_VD=target.head[id_V],
    d2t_V=None,
    t2d_V=None,
  )
  id_V = None if len(id_V) == vocab else jnp.asarray(id_V, jnp.int32)
  return config, eagle3_weights.unbind(settings, params.replace(id_V=id_V))


def _checked(id_V: Any, vocab: int) -> np.ndarray:
  """The tokens as int[V]; raises ValueError for what are none."""
  id_V = np.arange(vocab) if id_V is None else np.asarray(id_V)
  whole = id_V.ndim == 1 and np.issubdtype(id_V.dtype, np.integer)
  if not whole or not len(id_V) or (np.diff(id_V) <= 0).any():
    raise ValueError(
      f'id_V is {id_V!r}; give one or more whole numbers, rising.'
    )
  if id_V[0] < 0 or id_V[-1] >= vocab:
    raise ValueError(
      f'id_V has tokens from {id_V[0]} to {id_V[-1]}; the target has 0 to '
      f'{vocab - 1}.'
    )
  return id_V


def config_of(target: ModelConfig, draft_vocab: int) -> dict[str, Any]:
  """config.json of one layer of the target's sizes.

  Layers and switches are the authors'; angles are the target's without its
  scaling, as published drafters for Qwen3 have them.
  """
  return {
    'architectures': ['LlamaForCausalLMEagle3'],
    'model_type': 'llama',
    'vocab_size': target.vocab,
    'draft_vocab_size': draft_vocab,
    'hidden_size': target.width,
    'intermediate_size': target.mlp,
    'num_hidden_layers': 1,
    'num_attention_heads': target.q_heads,
    'num_key_value_heads': target.kv_heads,
    'head_dim': target.head_dim,
    'hidden_act': 'silu',
    'rms_norm_eps': target.eps,
    'rope_theta': target.rope.theta,
    'max_position_embeddings': target.max_length,
    'tie_word_embeddings': False,
    'dtype': target.dtype,
    'torch_dtype': target.dtype,
    KEY: list(inputs_for(target.layers)),
  }


def inputs_for(layers: int) -> tuple[int, ...]:
  """Layers whose inputs are fused; the authors' where they are three.

  Shorter targets (OUR CHOICE) give an early, a middle and a late one, and the
  stream behind the last layer counts where there are no three before it.
  """
  low, middle, high = rule(layers)
  if low < middle < high:
    return low, middle, high
  if layers > 3:
    return 1, layers // 2, layers - 1
  return tuple(range(max(layers - 2, 0), layers + 1))
