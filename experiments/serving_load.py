"""Requests for an engine, so many at a time, and when each was answered."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specjax.decode.prefill import bucket_for
from specjax.decoder import Decoder
from specjax.engine.requests import Request
from specjax.training.fingerprints import texts_fingerprint

SAMPLING = ('max_new_tokens', 'temperature', 'top_k', 'top_p', 'min_p')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
  """What is asked, in which order, and how it is served."""

  prompts: Sequence[Sequence[int]]  # gone through again and again
  count: int  # requests
  slots: int  # of them are decoded together
  chunk: int  # rounds between two looks
  sampling: Mapping[str, Any]  # SAMPLING, of every request
  stop_ids: Any
  seed: int  # request i has seed + i

  def serve(self, decoder: Decoder) -> dict[str, Any]:
    """Serves all requests: seconds, and figures per request in their order.

    A request begins when the engine takes it, which it does when a slot is
    free: its latency holds its prompt's reading and no queue.
    """
    begun, first, last, results = self._answers(decoder, self._requests())
    order = range(self.count)
    return {
      'seconds': max(last.values()) - min(begun.values()),
      'latency_s': [last[i] - begun[i] for i in order],
      'first_s': [first[i] - begun[i] for i in order],
      'tokens': [len(results[i].tokens) for i in order],
      'walks': [results[i].accepted for i in order],
      # Names texts where the ids themselves are not kept.
      'digests': [texts_fingerprint(results[i].tokens) for i in order],
      'ids': [results[i].tokens for i in order],
    }

  def warm_up(self, decoder: Decoder) -> None:
    """Compiles what `serve` needs: one request per length of prompt."""
    lengths: dict[int, Sequence[int]] = {}
    for prompt in self.prompts[: self.count]:
      lengths.setdefault(bucket_for(len(prompt)), prompt)
    few = {**self.sampling}
    few['max_new_tokens'] = min(2, few['max_new_tokens'])
    requests = [
      Request(prompt=list(prompt), stop_ids=(), **few)
      for prompt in lengths.values()
    ]
    self._answers(decoder, requests)

  def _requests(self) -> list[Request]:
    return [
      Request(
        prompt=list(self.prompts[i % len(self.prompts)]),
        seed=self.seed + i,
        stop_ids=self.stop_ids,
        **self.sampling,
      )
      for i in range(self.count)
    ]

  def _answers(self, decoder: Decoder, requests: Sequence[Request]):
    """(when taken, first seen, ended; result) of each, by its number.

    Raises:
      ValueError: a request that cannot be served.
    """
    begun: dict[int, float] = {}
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    results: dict[int, Any] = {}
    clock = time.perf_counter

    def source() -> Iterator[Request]:
      for i, request in enumerate(requests):
        begun[i] = clock()
        yield request

    longest = max(map(len, self.prompts))
    serving = decoder.serve(
      source(),
      slots=self.slots,
      context=longest + self.sampling['max_new_tokens'],
      chunk=self.chunk,
      greedy_only=self.sampling['temperature'] == 0,
    )
    for event in serving:
      now = clock()
      if event.tokens:
        first.setdefault(event.id, now)
      if event.result is not None:
        if event.result.error is not None:
          raise ValueError(f'request {event.id}: {event.result.error}')
        last[event.id], results[event.id] = now, event.result
    return begun, first, last, results
