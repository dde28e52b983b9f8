"""A loaded target with a method: prompts in, texts and figures out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sharding
from specjax.checks import check_whole, whole
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.engine.engine import Serving
from specjax.engine.slots import Plan
from specjax.generation import Generation, Part, join, to_host
from specjax.inputs import REFUSED, Rows, as_prompts, make_rows
from specjax.method import Method
from specjax.types import DecodeState, Params

STOP_STRING_ROUNDS = 8  # rounds between two looks at the text
SERVED_CONTEXT = 4096  # tokens a served row has room for, unless told


class Decoder:
  """Holds parameters and the programs compiled for them."""

  def __init__(
    self,
    *,
    method: Method,
    params: Params,
    tokenizer: Any = None,
    slots: int = 8,
    mesh: Any = None,
  ):
    check_whole(1, slots=slots)
    sharding.check_mesh(mesh)
    self.method = method
    self.params = params
    self.tokenizer = tokenizer
    self.slots = slots  # rows that `serve` decodes together
    self.mesh = mesh  # the devices that hold the parameters; None is one
    self._programs: dict[Any, Any] = {}

  @property
  def config(self):
    return self.params.target.config

  @property
  def dtype(self) -> str:
    return str(self.params.target.dtype)

  @property
  def nodes(self) -> int:
    return self.method.tree.nodes

  def on_mesh(self) -> contextlib.AbstractContextManager[Any]:
    """What programs of these parameters are traced and called in."""
    return jax.set_mesh(self.mesh) if self.mesh else contextlib.nullcontext()

  def encode(self, prompt: Any, *, thinking: bool = False) -> list[int]:
    """Ids of a prompt: ids as they are, text as it is, messages by template."""
    if not isinstance(prompt, str) and not (prompt and _is_chat(prompt)):
      if not isinstance(prompt, Sequence) or not all(map(whole, prompt)):
        raise ValueError(
          f'prompt {str(prompt)[:40]!r} is no string, list of whole ids, or '
          'list of chat messages.'
        )
      return [int(t) for t in prompt]
    if self.tokenizer is None:
      raise ValueError(
        'this target has no tokenizer.json; pass prompts as lists of ids.'
      )
    if isinstance(prompt, str):
      return self.tokenizer.encode(prompt)
    return self.tokenizer.chat(prompt, thinking=thinking)

  def ends(self, stop_ids: Any, stop: Any) -> tuple[Any, tuple[str, ...]]:
    """Stop ids and stop strings of a call, as `generate` takes them."""
    if whole(stop_ids):
      stop_ids = (stop_ids,)
    if stop_ids is None:
      stop_ids = self.config.eos_ids
      if self.tokenizer is not None:  # a chat model's generation_config
        stop_ids += self.tokenizer.eos_ids
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not isinstance(s, str) or not s for s in stop):
      raise ValueError(
        f'stop is {list(stop)}; give strings, none empty: it would end every '
        'text. Ids are for stop_ids.'
      )
    if stop and self.tokenizer is None:
      raise ValueError('stop strings need a tokenizer; use stop_ids.')
    return stop_ids, stop

  def serve(
    self,
    requests: Iterable[Any],
    *,
    slots: int | None = None,
    context: int | None = None,
    chunk: int = 8,
    queue: int = 0,
    greedy_only: bool = False,
    logprobs: bool = False,
  ) -> Serving:
    """Decodes requests as they come, finished rows making room for others.

    Every text is the one that `generate` gives to its prompt alone, in float32,
    whatever stands beside it.

    Args:
      requests: `specjax.Request`s, their fields as dicts, or prompts; read as
        far as there is room. A generator may yield None for "nothing yet".
      slots: rows decoded together; None takes those given to `specjax.load`.
      context: room for prompt and answer of a row; None is the model's own, at
        most 4096. Longer requests are refused.
      chunk: rounds between two looks: tokens are seen, and rows replaced, after
        so many.
      queue: requests taken, and checked, beyond those in slots.
      greedy_only: no request samples; saves drawing noise.
      logprobs: as for `generate`.

    Returns:
      An iterator of `specjax.Event`s with `cancel(id)`. Bad requests are events
      too. What the source raises is raised once the others have ended.

    Raises:
      ValueError: before any work, for these settings.
    """
    longest = self.config.max_length
    if context is None:
      context = min(longest, SERVED_CONTEXT)
    plan = Plan(
      slots=self.slots if slots is None else slots,
      context=context,
      chunk=chunk,
      queue=queue,
      greedy_only=bool(greedy_only),
      logprobs=bool(logprobs),
    )
    if plan.context > longest:
      raise ValueError(
        f'context is {context}; this target has {longest} at most.'
      )
    parts = self.mesh.shape['data'] if self.mesh else 1
    if plan.slots % parts:
      raise ValueError(
        f'{plan.slots} slots cannot be split over data={parts} of the mesh; '
        f'give a multiple of {parts}.'
      )
    return Serving(self, requests, plan)

  def generate(
    self,
    prompts: Any,
    *,
    max_new_tokens: int | Sequence[int] = 96,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    seed: int | Sequence[int] = 0,
    stop_ids: Sequence[int] | None = None,
    stop: Sequence[str] | str = (),
    n: int = 1,
    logprobs: bool = False,
    thinking: bool = False,
    batch_size: int | None = None,
    pad_to: int = 0,
    **other: Any,
  ) -> Generation:
    """Decodes prompts, all rows in one batch unless `batch_size` says less.

    Args:
      prompts: strings (encoded as they are), lists of ids, or lists of chat
        messages (through the checkpoint's template); one or several.
      max_new_tokens: cap per row, the prefill's token included.
      temperature: 0 is greedy. It, `top_k`, `top_p`, `min_p`, `max_new_tokens`
        may be one value or one per row.
      top_k: 0 is off.
      top_p: 1 is off.
      min_p: 0 is off.
      seed: row i gets seed + i; or a list, one per row.
      stop_ids: ids that end a row and stay in it; None takes the checkpoint's
        end ids, () takes none.
      stop: strings that end a row; the text ends before them.
      n: samples per prompt.
      logprobs: also return the emitted tokens' log-probabilities under the
        target at temperature 1, uncut.
      thinking: handed to the chat template.
      batch_size: rows decoded together.
      pad_to: make room for prompts of so many tokens, so that calls with
        shorter ones share a compiled program; the texts stay the same.

    Raises:
      ValueError: before any work; names the setting and what is allowed.
    """
    for name in other:
      if name in REFUSED:
        raise ValueError(f'{name} is not supported; leave it out.')
      raise TypeError(f'generate() has no setting {name!r}.')
    stop_ids, stop = self.ends(stop_ids, stop)
    ids = [self.encode(p, thinking=thinking) for p in as_prompts(prompts)]
    rows = make_rows(
      ids,
      vocab=self.config.vocab,
      max_length=self.config.max_length,
      n=n,
      max_new_tokens=max_new_tokens,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      min_p=min_p,
      seed=seed,
      stop_ids=stop_ids,
    )
    size = len(rows) if batch_size is None else batch_size
    if not whole(size) or size < 1:
      raise ValueError(
        f'batch_size is {batch_size}; it must be whole and at least 1.'
      )
    if not whole(pad_to) or not 0 <= pad_to <= self.config.max_length:
      raise ValueError(
        f'pad_to is {pad_to}; it must be whole, 0 to {self.config.max_length}.'
      )
    with self.on_mesh():
      parts = [
        self._decode(rows.part(i, size), stop, logprobs, pad_to)
        for i in range(0, len(rows), size)
      ]
    return join(rows, parts, self.tokenizer, stop, logprobs)

  def _decode(
    self, rows: Rows, stop: tuple[str, ...], logprobs: bool, pad_to: int
  ):
    count = len(rows)
    if self.mesh:  # so that the batch can be split
      rows = rows.filled(self.mesh.shape['data'])
    longest = max(pad_to, *map(len, rows.prompts))
    bucket = bucket_for(longest)
    capacity = capacity_for(self.method, longest, max(rows.new_tokens))
    arrays = rows.arrays(bucket)
    length = np.asarray(arrays[1])
    arrays = sharding.placed_rows(arrays, self.mesh)
    flags = (arrays[3].all_greedy, arrays[3].filtering, logprobs)
    key = (len(rows), arrays[4].shape[1], capacity, *flags)
    clock = time.perf_counter
    begun = clock()
    first = self._program(
      ('prefill', bucket, key),
      lambda: prefill.lower(
        self.method, self.params, *arrays, capacity=capacity, logprobs=logprobs
      ),
    )
    compiled = clock()
    state = jax.block_until_ready(first(self.params, *arrays))
    prefilled = clock()
    chunk = STOP_STRING_ROUNDS if stop else None
    loop = self._program(
      ('decode', key, chunk),
      lambda: decode.lower(self.method, self.params, state, max_rounds=chunk),
    )
    ready = clock()
    state, _ = loop(self.params, state)
    while stop and not bool(jnp.all(state.done_B)):
      found_B = self._ended_by(state, length, stop)
      state = state.replace(done_B=state.done_B | found_B)
      state, _ = loop(self.params, state)
    state = jax.block_until_ready(state)
    done = clock()
    times = np.asarray(
      [prefilled - compiled, done - ready, compiled - begun + ready - prefilled]
    )
    return Part(host=to_host(state), length=length[:count], times=times)

  def _program(self, key: Any, lower: Callable[[], Any]) -> Any:
    if key not in self._programs:
      self._programs[key] = lower().compile()
    return self._programs[key]

  def _ended_by(self, state: DecodeState, length, stop) -> jax.Array:
    host = to_host(state)
    found = [
      any(s in self.tokenizer.decode(row[a:b].tolist()) for s in stop)
      for row, a, b in zip(host.tokens, length, host.length, strict=True)
    ]
    return sharding.placed_rows(jnp.asarray(found), self.mesh)


def _is_chat(prompt: Any) -> bool:
  return isinstance(prompt[0], dict)
