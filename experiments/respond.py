"""Responses to prompts, for a corpus: a file's own, or a target's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.corpus import encoder
from specjax.decode.prefill import bucket_for
from specjax.decoder import Decoder
from specjax.engine.requests import Request, Result
from specjax.models import transformer
from specjax.models.config import ModelConfig
from specjax.text import Tokenizer
from specjax.training.corpus import Features, Sample
from specjax.weights.leaves import cast

CHUNK = 16  # rounds between two looks at the rows
ROOM = 256  # contexts are multiples, so that few programs are compiled
TOKENS = 4096  # read together for their features, at most

Prompts = Mapping[int, Sequence[int]]
Tick = Callable[[], Any]  # called for every text


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Given:
  """Answers that are there, with the target's end token behind them."""

  config: ModelConfig
  tokenizer: Any
  answers: Mapping[int, str]
  cap: int | None  # None: as much as the context holds

  def __call__(
    self, prompts: Prompts, ids: Sequence[int], tick: Tick
  ) -> list[Sample]:
    """Texts of these prompts; what is cut at the cap has no end."""
    encode, end = encoder(self.tokenizer), end_id(self.tokenizer)
    samples = []
    for i in ids:
      response = [*encode(self.answers[i]), end]
      room = self.config.max_length - len(prompts[i])
      room = min(room, self.cap or room)
      samples.append(
        Sample(
          tokens=np.asarray([*prompts[i], *response[:room]], np.int32),
          prompt_length=len(prompts[i]),
          id=i,
          ended=len(response) <= room,
        )
      )
      tick()
    return samples


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Decoded:
  """A target's answers, decoded by the project's own loop."""

  decoder: Decoder
  cap: int
  rows: int  # decoded together; a row that ends makes room at once
  temperatures: Sequence[float]  # prompt i takes number i modulo their number
  top_p: float
  seed: int  # prompt i is decoded with seed + i
  taps: tuple[int, ...] | None  # layers to keep; None: no features

  def __call__(
    self, prompts: Prompts, ids: Sequence[int], tick: Tick
  ) -> list[Sample]:
    """Texts of these prompts.

    Raises:
      ValueError: a prompt that cannot be decoded.
    """
    requests = [self._request(i, prompts[i]) for i in ids]
    results = self._results(requests, tick)
    samples = [
      Sample(
        tokens=np.asarray([*prompts[i], *results[i].tokens], np.int32),
        prompt_length=len(prompts[i]),
        id=i,
        ended=results[i].finish_reason == 'stop',
        temperature=request.temperature,
      )
      for i, request in zip(ids, requests, strict=True)
    ]
    if self.taps is None:
      return samples
    return with_features(self.decoder.params.target, samples, self.taps)

  def _request(self, i: int, prompt: Sequence[int]) -> Request:
    longest = self.decoder.config.max_length
    return Request(
      prompt=prompt,
      id=i,
      max_new_tokens=min(self.cap, longest - len(prompt)),
      temperature=self.temperatures[i % len(self.temperatures)],
      top_p=self.top_p,
      seed=(self.seed + i) % 2**32,
    )

  def _results(
    self, requests: Sequence[Request], tick: Tick
  ) -> dict[int, Result]:
    needed = max(len(r.prompt) + r.max_new_tokens for r in requests)
    context = min(-(-needed // ROOM) * ROOM, self.decoder.config.max_length)
    results = {}
    for event in self.decoder.serve(
      requests,
      slots=self.rows,
      context=context,
      chunk=CHUNK,
      greedy_only=max(self.temperatures) == 0,
    ):
      if event.result is None:
        continue
      if event.result.finish_reason == 'error':
        raise ValueError(f'prompt {event.id}: {event.result.error}')
      results[event.id] = event.result
      tick()
    return results


def end_id(tokenizer: Any) -> int:
  """What the tokenizer calls its end; of a chat model, that of a turn."""
  if isinstance(tokenizer, Tokenizer):
    end = tokenizer.backend.token_to_id(tokenizer.special.get('eos_token', ''))
    if end is not None:
      return end
  if not tokenizer.eos_ids:
    raise ValueError('the tokenizer names no end token, and answers need one.')
  return tokenizer.eos_ids[0]


def with_features(
  target: transformer.Weights, samples: Sequence[Sample], taps: tuple[int, ...]
) -> list[Sample]:
  """The samples with tapped layers and final hidden states, in bfloat16.

  Texts are read whole, beside others of their length.
  """
  result: list[Sample | None] = [None] * len(samples)
  left = sorted(range(len(samples)), key=lambda i: -len(samples[i].tokens))
  while left:
    width = bucket_for(len(samples[left[0]].tokens))
    rows = max(TOKENS // width, 1)
    part, left = left[:rows], left[rows:]
    token_BT = np.zeros((rows, width), np.int32)
    for row, i in zip(token_BT, part, strict=False):
      row[: len(samples[i].tokens)] = samples[i].tokens
    taps_BTE, hidden_BTD = jax.device_get(_read(target, token_BT, taps=taps))
    for b, i in enumerate(part):
      end = len(samples[i].tokens)
      features = Features(taps_BTE[b, :end], hidden_BTD[b, :end])
      result[i] = samples[i]._replace(features=features)
  return result


@functools.partial(jax.jit, static_argnames=('taps',))
def _read(target, token_BT, *, taps):
  out = transformer.read(target, token_BT, taps=taps)
  return cast((out.taps_BTE, out.hidden_BTD), jnp.bfloat16)
