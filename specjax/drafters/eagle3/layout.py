"""What an EAGLE-3 drafter is: read from its config.json and its shapes.

Three layouts are in use: the authors' (SafeAILab/EAGLE), that of SpecForge and
SGLang, and that of speculators and vLLM. Configurations are often wrong about
sizes, so shapes win where they are known, with a warning. What shapes cannot
tell is refused where it is in doubt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.checks import number
from specjax.drafters.eagle3 import layer_ids
from specjax.drafters.eagle3.names import by_canonical
from specjax.drafters.eagle3.sizes import ATTENTION, Shapes, sizes_of
from specjax.models.config import ModelConfig, dtype_of
from specjax.models.rope import rope_from_hf

ARCHITECTURES = (
  'LlamaForCausalLMEagle3',
  'Eagle3LlamaForCausalLM',
  'Eagle3Speculator',
  'Eagle3DraftModel',
)
PLAIN = 'LlamaForCausalLM'  # the authors' own files call themselves so
NESTED = 'transformer_layer_config'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Sizes and switches of a drafter; hashable, static."""

  config: ModelConfig  # its layers; the vocabulary is the target's
  draft_vocab: int  # rows of its head
  target_width: int
  inputs: tuple[int, ...]  # target layers whose inputs are fused, low to high
  norm_before_residual: bool = False  # the residual is the normed feature
  norm_before_fc: bool = False  # one norm of all features before fusing
  fc_norm: bool = False  # one norm for each layer's feature instead
  norm_output: bool = False  # EAGLE-3.1: what is fed back is normed
  own_embedding: bool = False
  own_head: bool = True
  offsets: bool = False  # it holds d2t
  mask: bool = False  # it holds t2d
  stored: tuple[tuple[str, str], ...] = ()  # names that are not the authors'


def from_hf(
  config: Mapping[str, Any],
  target: ModelConfig,
  *,
  aux: str | None = None,
) -> Settings:
  """Reads a parsed config.json in any layout.

  `norm_output` is read as vLLM and SGLang do. In files of SpecForge older than
  its change 879 the key meant something else (true: plain EAGLE-3): set it to
  false there.

  Args:
    config: with 'tensors', the shapes by stored name, these overrule it.
    target: what it will draft for.
    aux: how its layer ids count, see `layer_ids.layer_inputs_of`.

  Raises:
    ValueError: what is no EAGLE-3 drafter, is not implemented, contradicts
      itself or does not fit the target; names both values.
  """
  flat = {**config, **(config.get(NESTED) or {})}
  stored = flat.pop('tensors', None)
  shapes, names = None, {}
  if stored is not None:
    names = by_canonical(stored)
    shapes = {name: tuple(stored[spelt]) for name, spelt in names.items()}
  _check_kind(config, shapes)
  _refuse(flat, shapes)
  inputs = layer_ids.layer_inputs_of(config, target.layers, aux)
  sizes = sizes_of(flat, shapes, len(inputs), target)
  settings = Settings(
    config=_model(flat, sizes, shapes, target),
    draft_vocab=sizes['draft_vocab_size'],
    target_width=sizes['target_hidden_size'],
    inputs=inputs,
    norm_before_residual=bool(flat.get('norm_before_residual', False)),
    norm_before_fc=_switch(flat, shapes, 'norm_before_fc', 'input_norm.weight'),
    fc_norm=_switch(flat, shapes, 'fc_norm', 'fc_norm.0.weight'),
    norm_output=bool(flat.get('norm_output', False)),
    stored=tuple((a, b) for a, b in sorted(names.items()) if a != b),
    **_own(flat, shapes, sizes),
  )
  _check_fit(settings, target)
  return settings


def _check_kind(config: Mapping[str, Any], shapes: Shapes | None) -> None:
  name = (config.get('architectures') or [None])[0]
  named = name in ARCHITECTURES
  named |= config.get('speculators_model_type') == 'eagle3'
  if not named and (shapes is None or name not in (None, PLAIN)):
    raise ValueError(
      f'architecture {name!r} is no EAGLE-3 drafter; those are '
      f'{", ".join(ARCHITECTURES)}, and {PLAIN} whose tensors are.'
    )
  needed = (
    *('fc.weight', 'norm.weight', 'midlayer.hidden_norm.weight'),
    *(f'{ATTENTION}.{x}_proj.weight' for x in 'qkvo'),
    *(f'midlayer.mlp.{x}_proj.weight' for x in ('gate', 'up', 'down')),
  )
  missing = [x for x in needed if shapes is not None and x not in shapes]
  if missing:
    raise ValueError(
      f'the checkpoint has no {", ".join(missing)}, so it is no EAGLE-3 '
      'drafter; give one.'
    )


def _refuse(flat: Mapping[str, Any], shapes: Shapes | None) -> None:
  """Raises for what would change a logit and is not implemented."""
  biased = [x for x in shapes or () if x.endswith('.bias')]
  if shapes is None:
    biased = [k for k in ('attention_bias', 'mlp_bias', 'bias') if flat.get(k)]
  if biased:
    raise ValueError(f'biases are not supported; the drafter has {biased}.')
  plain = {
    'hidden_act': 'silu',
    'use_sliding_window': False,
    'partial_rotary_factor': 1.0,
    'quantization_config': None,
  }
  for key, allowed in plain.items():
    if flat.get(key, allowed) not in (allowed, None):
      raise ValueError(
        f'{key}={flat[key]!r} is not supported; only {allowed!r} is.'
      )
  kinds = set(flat.get('layer_types') or ()) - {'full_attention'}
  window = flat.get('sliding_window') and flat.get('use_sliding_window', True)
  if kinds or (window and not flat.get('layer_types')):
    raise ValueError(
      'sliding windows are not supported; the drafter has layer_types '
      f'{sorted(kinds)} and sliding_window {flat.get("sliding_window")}.'
    )


def _model(
  flat: Mapping[str, Any],
  sizes: Mapping[str, int],
  shapes: Shapes | None,
  target: ModelConfig,
) -> ModelConfig:
  if shapes is None:
    kinds = (flat.get('draft_arch'), flat.get('model_type'))
    qk_norm = 'qwen3' in kinds
  else:
    qk_norm = f'{ATTENTION}.q_norm.weight' in shapes
  eps = flat.get('rms_norm_eps')
  if eps is not None and not (number(eps) and eps > 0):
    raise ValueError(f'rms_norm_eps is {eps!r}; give a number above 0.')
  return ModelConfig(
    family='llama',
    vocab=sizes['vocab_size'],
    width=sizes['hidden_size'],
    layers=sizes['num_hidden_layers'],
    q_heads=flat['num_attention_heads'],
    kv_heads=sizes['num_key_value_heads'],
    head_dim=sizes['head_dim'],
    mlp=sizes['intermediate_size'],
    eps=eps or 1e-6,
    rope=rope_from_hf(flat),  # never the target's: 10000 where it is not said
    max_length=flat.get('max_position_embeddings') or target.max_length,
    qk_norm=qk_norm,
    dtype=dtype_of(flat),
  )


def _switch(
  flat: Mapping[str, Any], shapes: Shapes | None, key: str, tensor: str
) -> bool:
  """A norm that its tensor shows, or else its key."""
  said = flat.get(key)
  if shapes is None:
    return bool(said)
  shown = tensor in shapes
  if said is not None and bool(said) != shown:
    raise ValueError(
      f'the drafter has {key}={said}, but {"a" if shown else "no"} tensor '
      f'{tensor}; correct the config.json.'
    )
  return shown


def _own(
  flat: Mapping[str, Any], shapes: Shapes | None, sizes: Mapping[str, int]
) -> dict[str, bool]:
  """Which optional tensors it holds; `tie_word_embeddings` is often wrong."""
  if shapes is None:
    part = sizes['draft_vocab_size'] < sizes['vocab_size']
    foreign = sizes['hidden_size'] != sizes['target_hidden_size']
    head = foreign or flat.get('draft_vocab_size') is not None
    return {
      'own_embedding': foreign,
      'own_head': head,
      'offsets': part,
      'mask': part,
    }
  names = {
    'own_embedding': 'embed_tokens.weight',
    'own_head': 'lm_head.weight',
    'offsets': 'd2t',
    'mask': 't2d',
  }
  return {key: name in shapes for key, name in names.items()}


def _check_fit(s: Settings, target: ModelConfig) -> None:
  for key, given, wanted in (
    ('vocab_size', s.config.vocab, target.vocab),
    ('target_hidden_size', s.target_width, target.width),
  ):
    if given != wanted:
      raise ValueError(
        f'the drafter has {key}={given}, the target {wanted}; choose a drafter '
        'trained for this target.'
      )
  own_width = s.config.width != target.width
  part = s.draft_vocab < target.vocab
  for wrong, what in (
    (s.norm_before_fc and s.fc_norm, 'both norm_before_fc and fc_norm'),
    (own_width and not s.own_embedding, 'no embedding of its own width'),
    (own_width and not s.own_head, 'no head of its own width'),
    (part and not s.own_head, 'a smaller vocabulary and no head'),
    (part and not s.offsets, 'a smaller vocabulary and no d2t'),
    (s.draft_vocab > target.vocab, 'more tokens than the target'),
  ):
    if wrong:
      raise ValueError(
        f'the drafter has {what} (hidden_size {s.config.width}, the '
        f"target's {target.width}; draft_vocab_size {s.draft_vocab} of "
        f'{target.vocab}); give a complete checkpoint.'
      )
