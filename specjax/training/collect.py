"""Rounds of prompts, decoded as the pool of a TAPS method would have it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checks import check_whole, number
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.inputs import make_rows
from specjax.method import Method
from specjax.training.traces import Rounds, Watch, tracing
from specjax.types import DecodeState, Params

KEPT = ('float16', 'bfloat16', 'float32')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """How prompts are decoded for their rounds.

  The authors trace greedy decoding of a 512-node DDTree, where serving sees
  another pool; we take the serving pool itself, so that the features and the
  sibling sets behind `other` are those of serving. A node that is not verified
  has no label for its children.

  Args:
    nodes: rows verified per round, root included.
    new_tokens: per prompt.
    stop_ids: end a text.
    temperature: of decoding; labels do not depend on it.
    seed: prompt i samples with seed + i.
    hidden: see `Watch`.
    heat: see `Watch`.
    batch: prompts decoded together; changes no record in float32.
    rounds: per call of the loop, whose records stand on the device.
  """

  nodes: int
  new_tokens: int = 512
  stop_ids: tuple[int, ...] = ()
  temperature: float = 0.0
  seed: int = 0
  hidden: str = 'float16'
  heat: float = 1.0
  batch: int = 1
  rounds: int = 32

  @property
  def lasting(self) -> dict[str, Any]:
    """The settings that records depend on."""
    fields = dataclasses.asdict(self) | {'stop_ids': list(self.stop_ids)}
    return {k: x for k, x in fields.items() if k not in ('batch', 'rounds')}

  def __post_init__(self):
    check_whole(
      1, new_tokens=self.new_tokens, batch=self.batch, rounds=self.rounds
    )
    check_whole(0, seed=self.seed)
    if not number(self.temperature) or self.temperature < 0:
      raise ValueError(
        f'temperature is {self.temperature!r}; give a number from 0 on.'
      )
    if self.hidden not in KEPT:
      raise ValueError(
        f'hidden is {self.hidden!r}; choose one of {", ".join(KEPT)}.'
      )
    if not number(self.heat) or self.heat <= 0:
      raise ValueError(f'heat is {self.heat!r}; give a number above 0.')


def collect(
  method: Method,
  params: Params,
  prompts: Sequence[Sequence[int]],
  plan: Plan,
  *,
  first: int = 0,
) -> Iterator[Rounds]:
  """One `Rounds` on the host per prompt, in order, from prompt `first` on.

  Args:
    method: TAPS as it will serve; its parameters of the tree are not read.
    params: bound where parts bind.
    prompts: ids; all of them decide the compiled shapes, skipped ones too.
    plan: how.
    first: prompts to skip.

  Raises:
    ValueError: before any work, for a prompt that is empty or does not fit.
  """
  longest = max(map(len, prompts), default=0)
  limit = params.target.config.max_length
  if not prompts or not all(map(len, prompts)):
    raise ValueError('a prompt is empty or there is none; give ids.')
  if longest + plan.new_tokens > limit:
    raise ValueError(
      f'a prompt of {longest} tokens and {plan.new_tokens} new ones exceed the '
      f'context of {limit}; shorten one of them.'
    )
  traced = tracing(method, plan.nodes)
  watch = Watch(pool=method.tree.pool, hidden=plan.hidden, heat=plan.heat)
  params = params.replace(tree=())

  def some(at: int) -> Iterator[Rounds]:
    part = range(at, min(at + plan.batch, len(prompts)))
    state = _start(traced, params, prompts, part, plan)
    yield from _rounds(traced, params, state, watch, plan)[: len(part)]

  starts = range(first, len(prompts), plan.batch)
  return itertools.chain.from_iterable(map(some, starts))


def _start(
  method: Method, params: Params, prompts, some: range, plan: Plan
) -> DecodeState:
  """After these prompts; rows too many are done after one token."""
  config, spare = params.target.config, plan.batch - len(some)
  rows = make_rows(
    [list(prompts[i]) for i in some] + [[0]] * spare,
    vocab=config.vocab,
    max_length=config.max_length,
    max_new_tokens=[plan.new_tokens] * len(some) + [1] * spare,
    temperature=plan.temperature,
    seed=plan.seed + some.start,
    stop_ids=plan.stop_ids,
  )
  longest = max(map(len, prompts))
  room = capacity_for(method, longest, plan.new_tokens)
  arrays = rows.arrays(bucket_for(longest))
  return prefill(method, params, *arrays, capacity=room)


def _rounds(
  method: Method, params: Params, state: DecodeState, watch: Callable, plan
) -> list[Rounds]:
  """Decodes to the end: the rounds in which each row was alive."""
  parts: list[list[Any]] = [[] for _ in range(plan.batch)]
  before_B = np.zeros(plan.batch, int)
  while True:
    state, records = decode(
      method, params, state, max_rounds=plan.rounds, observe=watch
    )
    values, after_B = jax.device_get((records.values, state.rounds_B))
    for b, part in enumerate(parts):
      n = after_B[b] - before_B[b]  # a row is alive first and done later
      part.append(jax.tree.map(lambda x, n=n, b=b: x[:n, b], values))
    before_B = after_B
    if bool(jnp.all(state.done_B)):
      return [
        jax.tree.map(lambda *xs: np.concatenate(xs), *part) for part in parts
      ]
