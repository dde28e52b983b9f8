"""Public sizes of models and drafters, and data-sheet figures of devices.

Targets: the config.json of Qwen/Qwen3-* and meta-llama/Llama-3.1-8B-Instruct.
Block drafters: the DFlash authors' configurations (arXiv:2602.06036) and
SpecForge's (github.com/sgl-project/SpecForge), which also has EAGLE-3's.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

from experiments.roofline_model import Device
from experiments.roofline_rounds import (
  Block,
  Drafter,
  Eagle3,
  Lookup,
  SmallModel,
)
from specjax.models.config import ModelConfig, from_hf

# NVIDIA data sheets; dense bfloat16, which is half of what is printed "with
# sparsity". The A800's links differ from the A100's, its chip does not.
DEVICES = {
  'a40': Device(gb_s=696, tflop_s=149.7),
  'a100': Device(gb_s=2039, tflop_s=312),  # SXM, 80 GB
  'a800': Device(gb_s=2039, tflop_s=312),  # SXM, 80 GB
  'h100': Device(gb_s=3350, tflop_s=989),  # SXM
  'h200': Device(gb_s=4800, tflop_s=989),  # SXM
  'gh200': Device(gb_s=4000, tflop_s=990),  # 96 GB of HBM3
  'b200': Device(gb_s=8000, tflop_s=2250),
}

# Of an eager PyTorch stack: what makes the plain step of Qwen3-4B 34.0 ms on an
# A800, as CaDDTree's released cost model has it (arXiv:2606.01813,
# github.com/ZhangShuai1230/CaDDTree).
EAGER_LAUNCH_US = 83.0

_LLAMA, _MOE = 'LlamaForCausalLM', 'Qwen3MoeForCausalLM'
_EXPERTS = dict(
  num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
)


def _model(width, layers, heads, mlp, *, vocab=151936, name=None, **more):
  return from_hf(
    dict(
      architectures=[name or 'Qwen3ForCausalLM'],
      vocab_size=vocab,
      hidden_size=width,
      num_hidden_layers=layers,
      num_attention_heads=heads[0],
      num_key_value_heads=heads[1],
      head_dim=128,
      intermediate_size=mlp,
      **more,
    )
  )


TARGETS = {
  'qwen3-0.6b': _model(1024, 28, (16, 8), 3072),
  'qwen3-1.7b': _model(2048, 28, (16, 8), 6144),
  'qwen3-4b': _model(2560, 36, (32, 8), 9728),
  'qwen3-8b': _model(4096, 36, (32, 8), 12288),
  'qwen3-30b-a3b': _model(2048, 48, (32, 4), 6144, name=_MOE, **_EXPERTS),
  'llama-3.1-8b': _model(4096, 32, (32, 8), 14336, vocab=128256, name=_LLAMA),
}
BLOCK_METHODS = ('dflash', 'ddtree', 'caddtree', 'taps', 'jetspec', 'treeflash')
METHODS = ('ar', 'lookup', 'draft_model', *BLOCK_METHODS, 'eagle3')
# Rows verified where none are given: as `specjax.methods` has it, a DFlash and
# a small model's chain apart, which follow from their depth.
NODES = {
  'ddtree': 65,
  'caddtree': 65,
  'taps': 65,
  'jetspec': 128,
  'treeflash': 64,
  'eagle3': 60,
}


def target_of(name: str) -> ModelConfig:
  """A preset's name, or a path of a config.json or of its folder.

  Raises:
    ValueError: neither, or a configuration that is not supported.
  """
  if name in TARGETS:
    return TARGETS[name]
  path = pathlib.Path(name)
  path = path / 'config.json' if path.is_dir() else path
  if not path.is_file():
    raise ValueError(
      f'there is no model {name!r}; choose {", ".join(TARGETS)}, or give the '
      'path of a config.json.'
    )
  return from_hf(json.loads(path.read_text()))


def device_of(name: str, **changes: float | None) -> Device:
  """A preset with some figures replaced; None keeps the preset's.

  Raises:
    ValueError: no such device.
  """
  if name not in DEVICES:
    raise ValueError(
      f'there is no device {name!r}; choose {", ".join(DEVICES)}, and replace '
      'its figures by --gb_s, --tflop_s and --launch_us.'
    )
  given = {key: x for key, x in changes.items() if x is not None}
  return dataclasses.replace(DEVICES[name], **given)


def device_named(kind: str) -> Device | None:
  """The preset of a device as jax names it; None where there is none.

  Cards of the same chip with other memory have other figures than the presets,
  which are SXM's.
  """
  words = re.split(r'[ \-]', kind.lower())
  if {'pcie', 'nvl'} & set(words):
    return None
  return next((DEVICES[x] for x in words if x in DEVICES), None)


def drafter_of(
  method: str,
  target: ModelConfig,
  *,
  depth: int | None = None,
  width: int | None = None,
  model: ModelConfig | None = None,
) -> Drafter | None:
  """The drafter that a method is published with for a target.

  Args:
    method: one of METHODS; 'ar' has none.
    target: where it is no preset, five layers like its own are assumed.
    depth: of EAGLE-3, lookup and a small model; a block's is fixed.
    width: nodes EAGLE-3 continues per level.
    model: sizes of the small model; None is Qwen3-1.7B.

  Raises:
    ValueError: no such method.
  """
  if method not in METHODS:
    raise ValueError(
      f'there is no method {method!r}; choose {", ".join(METHODS)}.'
    )
  if method == 'ar':
    return None
  if method == 'lookup':
    return Lookup(depth=10 if depth is None else depth)
  if method == 'draft_model':
    model = TARGETS['qwen3-1.7b'] if model is None else model
    return SmallModel(net=model, depth=4 if depth is None else depth)
  if method == 'eagle3':
    return Eagle3(
      net=_like(target, 1, 12288 if target.experts else target.mlp),
      depth=7 if depth is None else depth,
      width=10 if width is None else width,
    )
  return _block(target, parents=16 if method == 'treeflash' else 0)


def _block(target: ModelConfig, parents: int) -> Block:
  """Five layers like the target's, with the exceptions of what is public."""
  if target == TARGETS['llama-3.1-8b']:  # made of Qwen3-8B's layers
    return Block(net=_like(target, 5, 12288), block=10, parents=parents)
  if target.experts:  # as for Qwen3-Coder-30B-A3B
    return Block(net=_like(target, 8, 6144), parents=parents)
  return Block(net=_like(target, 5, target.mlp), parents=parents)


def _like(target: ModelConfig, layers: int, mlp: int) -> ModelConfig:
  return dataclasses.replace(
    target,
    layers=layers,
    mlp=mlp,
    experts=0,
    experts_per_token=0,
    expert_mlp=0,
    sparse_layers=(),
  )
