"""Small targets with a method, on one device and on a mesh."""

from __future__ import annotations

import collections
import functools
import importlib
import re

import jax
import methods_fixture as fx

from specjax import sharding
from specjax.decoder import Decoder
from specjax.method import bind
from specjax.models import transformer
from specjax.models.config import ModelConfig, tiny
from specjax.types import Params

PROMPTS = [list(p) for p in fx.PROMPTS]
EVEN = tiny(vocab=32, layers=3, q_heads=8, kv_heads=8)
CONFIGS = {
  'even': EVEN,
  # Heads, vocabulary and mlp that neither 4 nor 8 divides; the mlp by 4 alone.
  'odd': tiny(vocab=29, layers=3, q_heads=6, kv_heads=3, mlp=44),
  # Query heads that 8 divides, on key/value heads that it does not.
  'grouped': tiny(vocab=32, layers=3, q_heads=8, kv_heads=2, qk_norm=False),
  'moe': tiny(
    vocab=32,
    layers=3,
    q_heads=8,
    kv_heads=8,
    family='qwen3_moe',
    experts=8,
    experts_per_token=3,
    expert_mlp=24,
    sparse_layers=(0, 1, 2),
    norm_topk=True,
  ),
}
OPTIONS = {'ddtree': {'nodes': 9}, 'eagle3': {'nodes': 6, 'depth': 3}}
COLLECTIVE = re.compile(
  r' = (.*?) (all-reduce|all-gather|all-to-all|collective-permute|'
  r'reduce-scatter)(?:-start)?\('
)


@functools.cache
def weights(config: ModelConfig) -> transformer.Weights:
  """Wide logits: top-two margins stay far above float32 noise."""
  return transformer.init(config, jax.random.key(7), scale=0.3)


@functools.cache
def decoder(config: ModelConfig, name: str) -> Decoder:
  """On one device; the drafter's parameters are random."""
  build = importlib.import_module(f'specjax.methods.{name}').build
  for drafter_config in fx.drafter_configs(config):
    try:
      method = build(config, drafter_config, **OPTIONS.get(name, {}))
      break
    except ValueError:
      continue
  drafter = method.drafter.init(jax.random.key(1), config)
  params = bind(method, Params(target=weights(config), drafter=drafter))
  return Decoder(method=method, params=params)


def on(mesh: jax.sharding.Mesh, one: Decoder) -> Decoder:
  """The same decoder on a mesh."""
  target, drafter = one.params.target, one.params.drafter
  width = sharding.head_dim(one.method.drafter, drafter, target)
  params = one.params.replace(
    target=sharding.placed(target, mesh, one.config.head_dim),
    drafter=sharding.placed(drafter, mesh, width),
  )
  return Decoder(method=one.method, params=params, mesh=mesh)


def generate(decoder: Decoder, **settings):
  """Three prompts, of which no mesh axis but 1 and 3 is a divisor."""
  settings = {'max_new_tokens': 16, 'stop_ids': ()} | settings
  return decoder.generate(PROMPTS, **settings)


def program(decoder: Decoder, kind: str) -> str:
  """The compiled text of what `generate` ran: 'prefill' or 'decode'."""
  (found,) = [p for k, p in decoder._programs.items() if k[0] == kind]
  return found.as_text()


def collectives(text: str) -> collections.Counter[tuple[str, str]]:
  """How many instructions there are of each (kind, shape)."""
  found = COLLECTIVE.findall(text)
  return collections.Counter(
    (kind, re.sub(r'\{[^}]*\}', '', shape)) for shape, kind in found
  )
