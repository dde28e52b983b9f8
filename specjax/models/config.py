"""What a target network is: read from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specjax.checks import check_whole, number
from specjax.models.rope import Rope, rope_from_hf

FAMILIES = {
  'Qwen3ForCausalLM': 'qwen3',
  'Qwen3MoeForCausalLM': 'qwen3_moe',
  'LlamaForCausalLM': 'llama',
}
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """Sizes and switches of a decoder-only transformer; hashable, static."""

  family: str
  vocab: int
  width: int
  layers: int
  q_heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  eps: float
  rope: Rope
  max_length: int
  tied: bool = False
  qk_norm: bool = False  # RMS norm of every query and key head (Qwen3)
  experts: int = 0
  experts_per_token: int = 0
  expert_mlp: int = 0
  norm_topk: bool = False  # expert weights renormalised after the top-k
  sparse_layers: tuple[int, ...] = ()
  eos_ids: tuple[int, ...] = ()
  dtype: str = 'float32'  # of the checkpoint

  def segments(self, stacked: bool) -> tuple[tuple[int, int], ...]:
    """(first layer, count) of each run of layers that share one program.

    Unstacked, every layer is a run of its own: slicing one layer out of a
    stack copies it on CPU, where that doubles the cost of a step.
    """
    runs: list[tuple[int, int]] = []
    for i in range(self.layers):
      same = i and (i in self.sparse_layers) == (i - 1 in self.sparse_layers)
      if stacked and same:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
      else:
        runs.append((i, 1))
    return tuple(runs)


def tiny(**changes: Any) -> ModelConfig:
  """A model small enough for tests and notebooks."""
  base = ModelConfig(
    family='qwen3',
    vocab=64,
    width=32,
    layers=3,
    q_heads=4,
    kv_heads=2,
    head_dim=12,
    mlp=48,
    eps=1e-6,
    rope=Rope(theta=10000.0),
    max_length=1024,
    qk_norm=True,
  )
  return dataclasses.replace(base, **changes)


def from_hf(config: Mapping[str, Any]) -> ModelConfig:
  """Reads a parsed config.json of a Qwen3, Qwen3-MoE or LLaMA model.

  Raises:
    ValueError: an architecture or a setting that is not implemented, by name;
      nothing is silently ignored that would change a logit.
  """
  names = config.get('architectures') or ['(none)']
  if names[0] not in FAMILIES:
    raise ValueError(
      f'architecture {names[0]!r} is not supported; choose a checkpoint of '
      f'{", ".join(FAMILIES)}.'
    )
  family = FAMILIES[names[0]]
  missing = [name for name in _needed(family) if name not in config]
  if missing:
    raise ValueError(f'the configuration lacks {", ".join(missing)}.')
  _refuse_unknown(config)
  _check_sizes(config, _needed(family))
  heads = config['num_attention_heads']
  moe = family == 'qwen3_moe'
  eos = config.get('eos_token_id')
  eos = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
  result = ModelConfig(
    family=family,
    vocab=config['vocab_size'],
    width=config['hidden_size'],
    layers=config['num_hidden_layers'],
    q_heads=heads,
    kv_heads=config.get('num_key_value_heads') or heads,
    head_dim=config.get('head_dim') or config['hidden_size'] // heads,
    mlp=config['intermediate_size'],
    eps=config.get('rms_norm_eps', 1e-6),
    rope=rope_from_hf(config),
    max_length=config.get('max_position_embeddings', 2048),
    tied=config.get('tie_word_embeddings', False),
    qk_norm=family != 'llama',
    experts=config['num_experts'] if moe else 0,
    experts_per_token=config['num_experts_per_tok'] if moe else 0,
    expert_mlp=config['moe_intermediate_size'] if moe else 0,
    norm_topk=bool(config.get('norm_topk_prob', False)) if moe else False,
    sparse_layers=_sparse_layers(config) if moe else (),
    eos_ids=eos,
    dtype=dtype_of(config),
  )
  if result.q_heads % result.kv_heads:
    raise ValueError(
      f'{result.q_heads} query heads do not divide into {result.kv_heads} '
      'key/value heads (num_attention_heads, num_key_value_heads).'
    )
  return result


def dtype_of(config: Mapping[str, Any]) -> str:
  """The dtype a config.json names, in either spelling; float32 without one.

  Raises:
    ValueError: one that weights cannot be held in.
  """
  name = config.get('dtype') or config.get('torch_dtype') or 'float32'
  if name not in DTYPES:
    raise ValueError(f'dtype is {name!r}; supported are {", ".join(DTYPES)}.')
  return name


def to_hf(config: ModelConfig) -> dict[str, Any]:
  """The content of a config.json that `from_hf` reads as this very config.

  Raises:
    ValueError: fields that no supported architecture has, by name.
  """
  name = {v: k for k, v in FAMILIES.items()}[config.family]
  eos: Any = list(config.eos_ids)
  result = {
    'architectures': [name],
    'model_type': config.family,
    'vocab_size': config.vocab,
    'hidden_size': config.width,
    'num_hidden_layers': config.layers,
    'num_attention_heads': config.q_heads,
    'num_key_value_heads': config.kv_heads,
    'head_dim': config.head_dim,
    'intermediate_size': config.mlp,
    'hidden_act': 'silu',
    'attention_bias': False,
    'rms_norm_eps': config.eps,
    'rope_theta': config.rope.theta,
    'rope_scaling': config.rope.scaling_to_hf(),
    'max_position_embeddings': config.max_length,
    'tie_word_embeddings': config.tied,
    'eos_token_id': eos if len(eos) > 1 else eos[0] if eos else None,
    'dtype': config.dtype,
    'torch_dtype': config.dtype,  # as transformers before 4.56 spells it
  }
  if config.family == 'qwen3_moe':
    dense = set(range(config.layers)) - set(config.sparse_layers)
    result |= {
      'num_experts': config.experts,
      'num_experts_per_tok': config.experts_per_token,
      'moe_intermediate_size': config.expert_mlp,
      'norm_topk_prob': config.norm_topk,
      'decoder_sparse_step': 1,
      'mlp_only_layers': sorted(dense),
    }
  _check_same(config, from_hf(result))
  return result


def _check_same(given: ModelConfig, read: ModelConfig) -> None:
  lost = [
    f.name
    for f in dataclasses.fields(given)
    if getattr(given, f.name) != getattr(read, f.name)
  ]
  if lost:
    raise ValueError(
      f'a config.json of the family {given.family!r} cannot express '
      + ', '.join(f'{x}={getattr(given, x)!r}' for x in lost)
      + '.'
    )


def _needed(family: str) -> tuple[str, ...]:
  common = (
    'vocab_size',
    'hidden_size',
    'num_hidden_layers',
    'num_attention_heads',
    'intermediate_size',
  )
  moe = ('num_experts', 'num_experts_per_tok', 'moe_intermediate_size')
  return common + moe if family == 'qwen3_moe' else common


def _check_sizes(config: Mapping[str, Any], needed: tuple[str, ...]) -> None:
  check_whole(1, **{name: config[name] for name in needed})
  optional = ('num_key_value_heads', 'head_dim', 'max_position_embeddings')
  given = {name: config.get(name) for name in optional}
  check_whole(1, **{name: x for name, x in given.items() if x is not None})
  eps = config.get('rms_norm_eps', 1e-6)
  if not number(eps) or eps <= 0:
    raise ValueError(f'rms_norm_eps is {eps!r}; give a number above 0.')


def _sparse_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
  step = config.get('decoder_sparse_step', 1)
  dense = config.get('mlp_only_layers') or ()
  return tuple(
    i
    for i in range(config['num_hidden_layers'])
    if i not in dense and step > 0 and (i + 1) % step == 0
  )


def _refuse_unknown(config: Mapping[str, Any]) -> None:
  plain = {
    'attention_bias': False,
    'mlp_bias': False,
    'use_sliding_window': False,
    'hidden_act': 'silu',
    'partial_rotary_factor': 1.0,
    'quantization_config': None,
  }
  for key, allowed in plain.items():
    if config.get(key, allowed) not in (allowed, None):
      raise ValueError(
        f'{key}={config[key]!r} is not supported; only {allowed!r} is.'
      )
  kinds = set(config.get('layer_types') or ()) - {'full_attention'}
  if kinds:
    raise ValueError(
      f'layer_types {sorted(kinds)} are not supported; only full_attention is.'
    )
