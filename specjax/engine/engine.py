"""Serves requests through a fixed number of slots; all of it on the host."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from specjax import metrics, sharding
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, prefill
from specjax.engine import slots as slots_lib
from specjax.engine.requests import (
  Event,
  Live,
  Request,
  Result,
  id_of,
  refusal,
  taken,
)
from specjax.engine.slots import Plan
from specjax.generation import ended
from specjax.types import DecodeState

if TYPE_CHECKING:
  from specjax.decoder import Decoder


class Serving:
  """An iterator of events; made by `Decoder.serve`.

  Continuous batching after Yu et al., "Orca: A Distributed Serving System for
  Transformer-Based Generative Models" (OSDI 2022): rows join and leave between
  chunks of rounds. Nothing runs between two events that are asked for, so a
  slow consumer slows everything, and nothing piles up.
  """

  def __init__(self, decoder: Decoder, requests: Iterable[Any], plan: Plan):
    if isinstance(requests, (str, Mapping, Request)) or not isinstance(
      requests, Iterable
    ):
      raise ValueError(
        f'requests are {str(requests)[:40]!r}; give an iterable of them, such '
        'as a list or a generator.'
      )
    self.plan = plan
    self._decoder = decoder
    self._source = iter(requests)
    self._over = False  # the source has no more
    self._failure: Exception | None = None  # or it raised this
    self._taken = 0
    self._live: dict[Hashable, Live] = {}
    self._waiting: collections.deque[Live] = collections.deque()
    self._running: dict[int, Live] = {}  # by slot
    self._state: DecodeState | None = None
    self._events = self._run()

  def __iter__(self) -> Iterator[Event]:
    return self

  def __next__(self) -> Event:
    return next(self._events)

  def close(self) -> None:
    """Ends without events; the device's memory is free when this is."""
    self._events.close()

  def cancel(self, id: Hashable) -> bool:
    """Ends a request early; its next event is its last.

    Returns:
      False where no such request is being served (any more).
    """
    live = self._live.get(id)
    if live is None:
      return False
    live.cancelled = True
    return True

  def _run(self) -> Iterator[Event]:
    method, params = self._decoder.method, self._decoder.params
    try:
      with self._decoder.on_mesh():
        self._state = slots_lib.empty(method, params, plan=self.plan)
      while True:
        yield from self._take()
        yield from self._drop()
        yield from self._fill()
        if self._running:
          with self._decoder.on_mesh():
            self._state, _ = decode(
              method, params, self._state, max_rounds=self.plan.chunk
            )
          yield from self._look()
        elif self._over:
          break
      if self._failure is not None:
        raise self._failure
    finally:
      self._state = None
      self._live.clear()

  def _take(self) -> Iterator[Event]:
    """Requests from the source, as many as there is room for."""
    room = self.plan.slots + self.plan.queue
    while not self._over and len(self._live) < room:
      try:
        item = next(self._source)
      except StopIteration:
        self._over = True
        return
      except Exception as error:  # raised again when the others have ended
        self._over, self._failure = True, error
        return
      if item is None:  # nothing yet
        return
      number, self._taken = self._taken, self._taken + 1
      try:
        live = taken(self._decoder, self.plan, item, number)
        if live.id in self._live:
          raise ValueError(
            f'id {live.id!r} is that of a request that is being served; give '
            'each its own, or none.'
          )
      except Exception as error:  # whatever it is, others go on
        yield refusal(item, id_of(item, number), error)
        continue
      self._live[live.id] = live
      self._waiting.append(live)

  def _drop(self) -> Iterator[Event]:
    """Takes cancelled requests out of the queue and out of their slots."""
    for live in [x for x in self._waiting if x.cancelled]:
      self._waiting.remove(live)
      yield self._last(live, self._cancelled(live, [], None))
    for slot, live in list(self._running.items()):
      if live.cancelled:
        walks, logprobs = self._record(slot, live)
        self._free(slot)
        yield self._last(live, self._cancelled(live, walks, logprobs))

  def _fill(self) -> Iterator[Event]:
    """Reads waiting prompts into free slots."""
    method, params = self._decoder.method, self._decoder.params
    free = [i for i in range(self.plan.slots) if i not in self._running]
    while free and self._waiting:
      live = self._waiting.popleft()
      prompt = len(live.rows.prompts[0])
      try:
        arrays = self.plan.arrays(live.rows, bucket_for(prompt))
        with self._decoder.on_mesh():
          row = prefill(
            method,
            params,
            *sharding.placed_rows(arrays, self._decoder.mesh),
            capacity=self.plan.capacity(method),
            logprobs=self.plan.logprobs,
          )
        # What the device cannot do for this prompt fails here, alone.
        row = jax.block_until_ready(row)
      except Exception as error:
        del self._live[live.id]
        yield refusal(live.request, live.id, error, prompt)
        continue
      slot = free.pop(0)
      with self._decoder.on_mesh():
        self._state = slots_lib.insert(self._state, row, np.int32(slot))
      self._running[slot] = live

  def _look(self) -> Iterator[Event]:
    """What a chunk of rounds brought to each row."""
    seen_B = np.ones((self.plan.slots,), np.int32)
    for slot, live in self._running.items():
      seen_B[slot] = live.seen
    width = self.plan.window(self._decoder.method)
    look = sharding.on_host(slots_lib.look(self._state, seen_B, width=width))
    for slot, live in list(self._running.items()):
      if live.cancelled:  # since the chunk; the next turn drops it
        continue
      new = look.token_BW[slot, : look.length_B[slot] - seen_B[slot]].tolist()
      if look.done_B[slot] or self._has_stop(live, new):
        result = self._result(slot, live, new, bool(look.stopped_B[slot]))
        self._free(slot)
        yield self._last(live, result)
      else:
        live.tokens += new
        yield Event(id=live.id, request=live.request, tokens=new)

  def _has_stop(self, live: Live, new: list[int]) -> bool:
    if not live.stop:
      return False
    text = self._decoder.tokenizer.decode(live.tokens + new)
    return any(s in text for s in live.stop)

  def _free(self, slot: int) -> None:
    """The slot's row is done, whether it ended by itself or not."""
    ended_B = np.arange(self.plan.slots) == slot
    self._state = self._state.replace(done_B=self._state.done_B | ended_B)
    del self._running[slot]

  def _record(self, slot: int, live: Live) -> tuple[list[int], Any]:
    """All walks of a row, and its log-probabilities where they are kept."""
    rounds, walk_R, logprob_T = sharding.on_host(
      slots_lib.record(self._state, np.int32(slot))
    )
    if logprob_T is not None:
      logprob_T = logprob_T[len(live.rows.prompts[0]) :].tolist()
    return walk_R[:rounds].tolist(), logprob_T

  def _result(
    self, slot: int, live: Live, new: list[int], stopped: bool
  ) -> Result:
    """Of a row that ended by an id, its cap or a string."""
    walks, logprobs = self._record(slot, live)
    ids, text, walks, reason = ended(
      live.tokens + new, walks, stopped, live.stop, self._decoder.tokenizer
    )
    return Result(
      tokens=ids,
      text=text,
      finish_reason=reason,
      accepted=walks,
      logprobs=None if logprobs is None else logprobs[: len(ids)],
      prompt_tokens=len(live.rows.prompts[0]),
    )

  def _cancelled(self, live: Live, walks: list[int], logprobs: Any) -> Result:
    """Of a row that was told to end: what was handed out, and no more."""
    ids, tokenizer = live.tokens, self._decoder.tokenizer
    return Result(
      tokens=list(ids),
      text=tokenizer.decode(ids) if tokenizer else None,
      finish_reason='cancelled',
      accepted=walks[: metrics.rounds_for(walks, len(ids) - 1)],
      logprobs=None if logprobs is None else logprobs[: len(ids)],
      prompt_tokens=len(live.rows.prompts[0]),
    )

  def _last(self, live: Live, result: Result) -> Event:
    del self._live[live.id]
    return Event(
      id=live.id,
      request=live.request,
      tokens=result.tokens[len(live.tokens) :],
      result=result,
    )
