"""Which checkpoint tensors fill which leaf: one row per leaf, plain data."""

from __future__ import annotations

from typing import NamedTuple

from specjax.models.config import ModelConfig


class Tensor(NamedTuple):
  """One leaf of a parameter struct and where its content is stored.

  `path` is the leaf's attribute path ('layers.0.mlp.gate_FD'). A leaf with
  several names is their stack, in order, reshaped to the leaf; `transpose`
  swaps the last two axes of each part first.
  """

  path: str
  names: tuple[str, ...]
  transpose: bool = False


def layer_tensors(
  path: str,
  prefix: str,
  indices: range,
  *,
  qk_norm: bool,
  experts: int = 0,
) -> list[Tensor]:
  """Rows of a stack of decoder layers in the Hugging Face naming."""
  one = {
    'attn_norm_D': 'input_layernorm',
    'q_OD': 'self_attn.q_proj',
    'k_OD': 'self_attn.k_proj',
    'v_OD': 'self_attn.v_proj',
    'o_DO': 'self_attn.o_proj',
    'mlp_norm_D': 'post_attention_layernorm',
  }
  if qk_norm:
    one |= {'q_norm_H': 'self_attn.q_norm', 'k_norm_H': 'self_attn.k_norm'}
  if experts:
    one['mlp.router_XD'] = 'mlp.gate'
  else:
    one |= {
      'mlp.gate_FD': 'mlp.gate_proj',
      'mlp.up_FD': 'mlp.up_proj',
      'mlp.down_DF': 'mlp.down_proj',
    }
  rows = [
    Tensor(
      f'{path}.{ours}',
      tuple(f'{prefix}layers.{i}.{theirs}.weight' for i in indices),
    )
    for ours, theirs in one.items()
  ]
  many = {'gate_XDF': 'gate_proj', 'up_XDF': 'up_proj', 'down_XFD': 'down_proj'}
  for ours, theirs in many.items() if experts else ():
    names = tuple(
      f'{prefix}layers.{i}.mlp.experts.{x}.{theirs}.weight'
      for i in indices
      for x in range(experts)
    )
    rows.append(Tensor(f'{path}.mlp.{ours}', names, transpose=True))
  return rows


def target_tensors(config: ModelConfig, stacked: bool) -> list[Tensor]:
  """Rows of a whole target; the order follows `transformer.abstract`."""
  rows = [
    Tensor('embed_VD', ('model.embed_tokens.weight',)),
    Tensor('norm_D', ('model.norm.weight',)),
  ]
  if not config.tied:
    rows.append(Tensor('head_VD', ('lm_head.weight',)))
  for i, (first, n) in enumerate(config.segments(stacked)):
    rows += layer_tensors(
      f'layers.{i}',
      'model.',
      range(first, first + n),
      qk_norm=config.qk_norm,
      experts=config.experts if first in config.sparse_layers else 0,
    )
  return rows
