"""A stream of prompts whose draft model learns while it drafts."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import states
from specjax.decode.loop import decode
from specjax.decode.prefill import capacity_for
from specjax.inputs import make_rows
from specjax.method import Method
from specjax.models.transformer import Weights
from specjax.types import Head, Params, Records, struct
from specjax.vocab import alignment, feedback, lora, teacher_forced


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
  """A draft model, the sizes of what it learns with, and how texts are made."""

  method: Method
  params: Params
  weights: Weights  # of the draft model; `params` may hold them in a wrapper
  observe: Callable  # of `feedback.observer`
  best: int  # tokens that it keeps
  chunk: int = 32  # rounds between two updates
  new: int = 96  # tokens per answer
  pad_to: int = 0
  stop_ids: tuple[int, ...] = ()
  ring: int = 1024
  texts: int = 4  # the latest, which positions are read in
  rank: int = 8
  scale: float = 2.0
  layers: int = 7  # adapted, from the last; at most
  seed: int = 0

  def __post_init__(self):
    most = self.chunk * self.method.path_rows
    if self.ring < most:
      raise ValueError(
        f'ring is {self.ring}; a chunk of {self.chunk} rounds may judge '
        f'{most} positions, which must fit.'
      )
    if self.weights.config.vocab < self.best:
      raise ValueError(
        f'best is {self.best}; the target has {self.weights.config.vocab} '
        'tokens.'
      )

  def start(self, params: Params, ids: Sequence[int]):
    """The state after the prompt."""
    config = params.target.config
    rows = make_rows(
      [list(ids)],
      vocab=config.vocab,
      max_length=config.max_length,
      max_new_tokens=self.new,
      stop_ids=self.stop_ids,
    )
    return states.after_prompt(self.method, params, rows, pad_to=self.pad_to)

  def params_with(self, weights: Weights) -> Params:
    """The draft model's weights exchanged, also inside of a vocabulary."""
    drafter = self.params.drafter
    if not isinstance(drafter, Weights):
      weights = drafter.replace(inner=weights)
    return self.params.replace(drafter=weights)


@struct
class Learner:
  """What lives across the prompts of a stream."""

  aligner: alignment.Aligner
  ring: alignment.Ring
  token_KT: Any  # int32, the latest texts
  weights: Weights  # the draft model's with the adapters' products
  chunks: Any  # int32


def begin(bench: Bench, settings: alignment.Settings) -> Learner:
  """Adapters that add nothing, and an empty ring."""
  adapters = lora.init(
    bench.weights,
    jax.random.key(bench.seed),
    rank=bench.rank,
    last=min(bench.layers, bench.weights.config.layers),
  )
  none = jnp.zeros(1, jnp.int32)
  example = teacher_forced.Place(text_N=none, position_N=none)
  width = capacity_for(bench.method, bench.pad_to, bench.new)
  return Learner(
    aligner=alignment.begin(settings, adapters),
    ring=alignment.empty_ring(example, bench.ring, bench.best),
    token_KT=jnp.zeros((bench.texts, width), jnp.int32),
    weights=bench.weights,
    chunks=jnp.int32(0),
  )


@functools.partial(jax.jit, static_argnames=('settings', 'scale'))
def learn(
  settings: alignment.Settings,
  scale: float,
  weights: Weights,
  head: Head,
  learner: Learner,
  records: Records,
  text: tuple[Any, Any, Any, Any],
  key,
) -> tuple[Learner, Any]:
  """What happens between two chunks of rounds.

  The draft model is an argument: weights that a function closes over would
  become constants of the program.

  Args:
    text: which it is; its tokens; its lengths before and after the chunk.

  Returns:
    The learner, and the loss (nan where nothing was updated).
  """
  at, token_T, start, end = text
  texts = learner.token_KT.shape[0]
  token_KT = learner.token_KT.at[at % texts].set(token_T)
  draft = teacher_forced.over_texts(weights, head, scale, token_KT)
  ring = feedback.collect(
    draft,
    learner.aligner.adapters,
    head,
    feedback.forget(learner.ring, at - texts + 1),
    records,
    at,
    start,
    end,
  )
  aligner = alignment.note(
    settings, learner.aligner, feedback.accepted_share(records)
  )
  key = jax.random.fold_in(key, learner.chunks)
  aligner, loss = alignment.align_step(settings, draft, aligner, ring, key)
  made = Learner(
    aligner=aligner,
    ring=ring,
    token_KT=token_KT,
    weights=lora.merge(weights, aligner.adapters, scale),
    chunks=learner.chunks + 1,
  )
  return made, loss


def answer(
  bench: Bench,
  settings: alignment.Settings | None,
  learner: Learner,
  ids: Sequence[int],
  at: int,
) -> tuple[Learner, dict[str, Any]]:
  """Decodes prompt `at` in chunks; without settings nothing is learnt.

  Seconds leave out the prompt's reading, and hold compilation where a program
  is new.
  """
  clock = time.perf_counter
  ready = jax.block_until_ready
  head = bench.method.drafter.head(bench.params.drafter, bench.params.target)
  observe = None if settings is None else bench.observe
  state = ready(bench.start(bench.params_with(learner.weights), ids))
  decode_s, align_s, losses, first = 0.0, 0.0, [], learner.aligner
  while not bool(state.done_B[0]):
    before = jnp.copy(state.context.length_B[0])  # the state is donated
    params = bench.params_with(learner.weights)
    begun = clock()
    state, records = ready(
      decode(
        bench.method, params, state, max_rounds=bench.chunk, observe=observe
      )
    )
    decode_s += clock() - begun
    if settings is None:
      continue
    begun = clock()
    context = state.context
    text = (at, context.tokens_BT[0], before, context.length_B[0])
    key = jax.random.key(bench.seed)
    args = (bench.scale, bench.weights, head, learner, records, text, key)
    learner, loss = ready(learn(settings, *args))
    align_s += clock() - begun
    losses.append(float(loss))
  made = [x for x in losses if x == x]
  return (
    learner,
    {
      **states.answer(state, len(ids)),
      'decode_s': decode_s,
      'align_s': align_s,
      'updates': int(learner.aligner.step - first.step),
      'reverts': int(learner.aligner.reverts - first.reverts),
      'loss': float(np.mean(made)) if made else None,
    },
  )


def stream(
  bench: Bench,
  settings: alignment.Settings | None,
  prompts: Sequence[Sequence[int]],
) -> Iterator[dict[str, Any]]:
  """One prompt after another, by a learner that begins with the first."""
  learner = begin(bench, settings or alignment.Settings())
  for at, ids in enumerate(prompts):
    learner, row = answer(bench, settings, learner, ids, at)
    yield row


def held_bytes(bench: Bench, settings: alignment.Settings) -> dict[str, int]:
  """Memory that alignment holds between chunks, by part.

  `merged` are the draft model's adapted matrices, beside the plain ones.
  """
  learner = jax.eval_shape(lambda: begin(bench, settings))
  size = lambda tree: sum(
    x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
  )
  adapters = learner.aligner.adapters
  merged = [
    getattr(stack if name in lora.ATTENTION else stack.mlp, name)
    for at, pairs in adapters.items()
    for stack in [bench.weights.layers[int(at)]]
    for name in pairs
  ]
  return {
    'adapters': size(adapters),
    'optimiser': size(learner.aligner.moments),
    'ring': size((learner.ring, learner.token_KT)),
    'snapshot': size(learner.aligner.snapshot),
    'merged': size(merged),
  }


def perturbed(weights: Weights, amount: float, seed: int) -> Weights:
  """Noise on the layers' matrices, `amount` times the deviation of each."""
  leaves, tree = jax.tree_util.tree_flatten_with_path(weights.layers)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  layers = []
  for (path, x), key in zip(leaves, keys, strict=True):
    if 'norm' not in jax.tree_util.keystr(path[-1:]):
      noise = jax.random.normal(key, x.shape, jnp.float32)
      x = (x + amount * jnp.std(x.astype(jnp.float32)) * noise).astype(x.dtype)
    layers.append(x)
  return weights.replace(layers=jax.tree.unflatten(tree, layers))
