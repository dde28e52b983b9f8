"""What travels with the package: a small target, drafters for it and others.

A family is the folder of one target's drafters. `drafters.json` and
`scorers.json` say which of them a method takes. The default's family holds its
target too; another one has `target.json`, by which the target is known wherever
its folder lies.
"""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any

from specjax import text
from specjax.models.config import ModelConfig
from specjax.weights.files import read_settings

FAMILIES = pathlib.Path(__file__).parent / 'pretrained'
PRETRAINED = FAMILIES / 'gsm8k_bytes'
TARGET = 'target.json'
RANKS = 'ranks.safetensors'  # in a drafter's folder: all that it proposes
SHAPE = ('vocab', 'width', 'layers', 'q_heads', 'kv_heads', 'head_dim', 'mlp')


def target_folder(name: str) -> pathlib.Path:
  """The folder of the packaged target, for 'default', or of another one."""
  if name == 'default':
    return PRETRAINED / 'target'
  return pathlib.Path(name).expanduser()


def family(
  target: str | pathlib.Path, config: ModelConfig, tokenizer: Any
) -> pathlib.Path | None:
  """The family of a target; None where nothing is packaged for it.

  Args:
    target: 'default', or what else was asked for.
    config: its configuration; shape and vocabulary decide. Weights do not: a
      fine-tuned model takes the drafters too, and accepts less of them.
    tokenizer: its own, or None.
  """
  if target == 'default':
    return PRETRAINED
  for path in sorted(FAMILIES.glob(f'*/{TARGET}')):
    known = read_settings(path)
    if known['shape'] != shape(config):
      continue
    if tokenizer and known['vocabulary'] == vocabulary_hash(tokenizer):
      return path.parent
  return None


def shape(config: ModelConfig) -> dict[str, int]:
  """What `target.json` calls a target's shape."""
  return {name: getattr(config, name) for name in SHAPE}


def vocabulary_hash(tokenizer: Any) -> str:
  """Sixteen hex digits of the tokens in order of id; '' for bytes.

  Not of the tokenizer's file: one vocabulary is stored in many ways.
  """
  if not isinstance(tokenizer, text.Tokenizer):
    return ''
  tokens = tokenizer.backend.get_vocab(with_added_tokens=True)
  in_order = sorted(tokens, key=lambda token: (tokens[token], token))
  return hashlib.sha256('\0'.join(in_order).encode()).hexdigest()[:16]


def drafter(family: pathlib.Path | None, method: str) -> pathlib.Path | None:
  """The folder of a method's drafter; None where there is none."""
  return _found(family, 'drafters.json', method)


def scorer(family: pathlib.Path | None, method: str) -> pathlib.Path | None:
  """The folder of the scorer of a method's tree, for that drafter."""
  return _found(family, 'scorers.json', method)


def drafters(family: pathlib.Path | None) -> list[str]:
  """Names of all packaged drafters, those of no method included."""
  if family is None:
    return []
  folders = {path.parent.name for path in family.glob('*/config.json')}
  scorers = read_settings(family / 'scorers.json')
  return sorted(folders - {'target', *scorers.values()})


def _found(family, index: str, method: str) -> pathlib.Path | None:
  if family is None:
    return None
  name = read_settings(family / index).get(method)
  return None if name is None else family / name
