"""Every method on a tiny target, and a runner, for tests of the whole loop."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import methods, sampling
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.inputs import Rows, make_rows
from specjax.method import LearnedTree, Method, bind
from specjax.models import transformer
from specjax.models.config import FAMILIES, ModelConfig, tiny
from specjax.trees.costed import LatencyTable, target_sizes
from specjax.types import DecodeState, Params
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec

CONFIG = tiny(vocab=16, layers=3)
# Wide logits: top-two margins stay far above float32 noise.
WEIGHTS = transformer.init(CONFIG, jax.random.key(7), scale=0.3)
# What published drafters write into `architectures`, beside plain models.
DRAFTERS = ('DFlashDraftModel', 'TreeFlashDraftModel', 'LlamaForCausalLMEagle3')
# What a method cannot be built without. Costs are such that each size pays at
# some length of the texts, and scores decide between these.
OPTIONS = {
  'caddtree': {
    'latency': LatencyTable(
      contexts=(4, 12, 20, 28, 36, 44),
      sizes=(1, 4, 10),
      verify_ms=((1.0, 1.4, 1.5), (1.0, 1.4, 2.2), (1.0, 3.0, 6.0)) * 2,
      draft_ms=0.1,
      device=jax.devices()[0].device_kind,
      dtype='float32',
      target=target_sizes(CONFIG),
    )
  },
  # Smaller trees than users get, which compile faster.
  'eagle3': {'nodes': 12, 'depth': 3, 'width': 4},
  'ddtree': {'nodes': 17},
  'jetspec': {'nodes': 17, 'width': 3},
  'taps': {'nodes': 17, 'pool': 12},
  'treeflash': {'nodes': 17},
}
PROMPTS = ([1, 2, 3, 4, 1, 2, 3], [5, 6] * 9 + [5], [3, 9])


# Lists that leave out tokens which the target takes.
FEW = tuple(i for i in range(CONFIG.vocab) if i % 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """A method built or wrapped in another way."""

  method: str
  vocab: Any = None
  changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


VARIANTS = {
  'dflash+rejection': Variant(method='dflash', options={'rule': 'rejection'}),
  'draft_model+follow': Variant(
    method='draft_model', options={'rule': 'follow'}
  ),
  'eagle3+chain': Variant(method='eagle3', options={'width': 1, 'nodes': 5}),
  'jetspec+best_first': Variant(
    method='jetspec', options={'tree': 'best_first'}
  ),
  **{
    f'{name}+fr_spec': Variant(method=name, vocab=FrSpec(ranks=FEW))
    for name in ('dflash', 'draft_model', 'eagle3', 'treeflash')
  },
  # Its head is the target's own, which has a row for every token.
  'eagle3+evospec': Variant(
    method='eagle3',
    vocab=EvoSpec(ranks=FEW, buffer=4),
    changes={'draft_vocab_size': None},
  ),
  'draft_model+evospec': Variant(
    method='draft_model', vocab=EvoSpec(ranks=FEW, buffer=4)
  ),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A method with parameters, ready to run."""

  method: Method
  params: Params


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What a run gave, on the host: one entry per row."""

  texts: list[list[int]]  # the answers, prompts excluded
  walks: list[list[int]]  # verdict lengths of the rounds the row was alive in
  logprobs: list[list[float]]
  state: DecodeState


def method_names() -> list[str]:
  """The modules of specjax.methods: there is no list to extend."""
  return sorted(m.name for m in pkgutil.iter_modules(methods.__path__))


def drafter_configs(target: ModelConfig) -> Iterator[dict[str, Any]]:
  """One config.json with the keys of all drafters, per architecture.

  A build function takes what it reads and refuses a foreign architecture, so
  that the first one it accepts is right.
  """
  architectures = (*FAMILIES, *DRAFTERS)
  for architecture, causal in itertools.product(architectures, (False, True)):
    yield {
      'architectures': [architecture],
      'vocab_size': target.vocab,
      'hidden_size': target.width,
      'intermediate_size': target.mlp,
      'num_hidden_layers': 2,
      'num_attention_heads': target.q_heads,
      'num_key_value_heads': target.kv_heads,
      'head_dim': target.head_dim,
      'hidden_act': 'silu',
      'rms_norm_eps': target.eps,
      'rope_theta': target.rope.theta,
      'max_position_embeddings': target.max_length,
      'tie_word_embeddings': False,
      'num_target_layers': target.layers,
      'block_size': 6,
      'dflash_config': {
        'mask_token_id': target.vocab - 1,
        'target_layer_ids': [0, target.layers - 2],
        'causal_head': causal,  # JetSpec alone refuses the first
      },
      'treeflash_config': {
        'ar_approximation': 'swiglu',
        'candidate_tokens': 8,
      },
      'draft_vocab_size': target.vocab - 4,
      'eagle_config': {
        'eagle_aux_hidden_state_layer_ids': list(range(target.layers))[:3],
      },
    }


def case_names() -> list[str]:
  """Every method, and variants that take another path through the code."""
  return method_names() + list(VARIANTS)


def make_case(name: str) -> Case:
  """The method or variant of that name with random drafter parameters."""
  if name not in VARIANTS:
    return built(name)
  variant = VARIANTS[name]
  case = built(variant.method, variant.changes, **variant.options)
  if variant.vocab is None:
    return case
  return Case(*variant.vocab.wrap(case.method, case.params))


def built(name: str, changes: Mapping[str, Any] | None = None, **options):
  """A method whose drafter config has these changes."""
  build = importlib.import_module(f'specjax.methods.{name}').build
  options = OPTIONS.get(name, {}) | options
  refusals = []
  for config in drafter_configs(CONFIG):
    try:
      method = build(CONFIG, config | dict(changes or {}), **options)
    except ValueError as error:
      refusals.append(str(error))
      continue
    return case_of(method)
  raise AssertionError(f'{name} refuses every drafter config: {refusals}')


def case_of(method: Method, seed: int = 1) -> Case:
  """A method with random drafter parameters."""
  drafter_key, tree_key = jax.random.split(jax.random.key(seed))
  tree = ()
  if isinstance(method.tree, LearnedTree):
    tree = method.tree.init(tree_key, CONFIG)
  drafter = method.drafter.init(drafter_key, CONFIG)
  params = Params(target=WEIGHTS, drafter=drafter, tree=tree)
  return Case(method, bind(method, params))


def rows_of(
  prompts=PROMPTS, *, new=24, seed=11, stop_ids=(), **options
) -> Rows:
  """Rows as `Decoder.generate` makes them; settings may be lists."""
  settings = {'temperature': 0.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0}
  return make_rows(
    [list(p) for p in prompts],
    vocab=CONFIG.vocab,
    max_length=CONFIG.max_length,
    n=1,
    max_new_tokens=new,
    seed=seed,
    stop_ids=stop_ids,
    **settings | options,
  )


def start(
  case: Case, rows: Rows, *, capacity: int | None = None, stops=None
) -> DecodeState:
  """The state after the prompt; `stops` gives each row its own stop ids."""
  longest = max(map(len, rows.prompts))
  length_B = jnp.asarray([len(p) for p in rows.prompts], jnp.int32)
  law = rows.sampling()
  # One program for all sampled runs, whether anything is cut or not.
  law = law.replace(filtering=not law.all_greedy)
  stop_BI = rows.stops() if stops is None else np.asarray(stops, np.int32)
  return prefill(
    case.method,
    case.params,
    jnp.asarray(rows.padded(bucket_for(longest))),
    length_B,
    sampling.row_keys(rows.seeds),
    law,
    jnp.asarray(stop_BI),
    length_B + jnp.asarray(rows.new_tokens, jnp.int32),
    capacity=capacity
    or capacity_for(case.method, longest, max(rows.new_tokens)),
    logprobs=True,
  )


def outcome(state: DecodeState, rows: Rows) -> Outcome:
  """Reads a state on the host."""
  token_BT, logprob_BT, length_B, rounds_B, walk_BR = jax.device_get(
    (
      state.context.tokens_BT,
      state.logprob_BT,
      state.context.length_B,
      state.rounds_B,
      state.walk_BR,
    )
  )
  spans = [
    slice(len(p), n) for p, n in zip(rows.prompts, length_B, strict=True)
  ]
  cut = lambda x: [
    row[span].tolist() for row, span in zip(x, spans, strict=True)
  ]
  walks = [w[:r].tolist() for w, r in zip(walk_BR, rounds_B, strict=True)]
  return Outcome(cut(token_BT), walks, cut(logprob_BT), state)


def run(case: Case, rows: Rows, *, state=None, **options) -> Outcome:
  """Prefill (unless a state is given) and decoding to the end."""
  if state is None:
    state = start(case, rows, **options)
  return outcome(decode(case.method, case.params, state)[0], rows)


def snapshot(tree: Any) -> Any:
  """Arrays on the host, keys as their data."""
  is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
  data = lambda x: jax.random.key_data(x) if is_key(x) else x
  return jax.tree.map(lambda x: np.array(data(x)), tree)
