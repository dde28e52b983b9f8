"""What a drafter in training is worth: mean accepted in the decode loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from experiments.prompts import read_prompts, to_ask
from specjax import metrics
from specjax.checks import check_whole
from specjax.decoder import Decoder
from specjax.method import Method
from specjax.weights.leaves import cast


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
  """Prompts that are not trained on, and how they are decoded."""

  prompts: str
  limit: int = 16
  skip: int = 0  # lines before the first one
  max_new_tokens: int = 96
  batch: int = 16
  temperature: float = 0.0
  seed: int = 0
  chat: bool = True

  def __post_init__(self):
    check_whole(1, limit=self.limit, max_new_tokens=self.max_new_tokens)
    check_whole(1, batch=self.batch)
    check_whole(0, skip=self.skip)

  def look(
    self, method: Method, plain: Decoder, vocab: Any = None
  ) -> Callable[[Any, int], Mapping[str, float]]:
    """A function of (the drafter's parameters, step) to figures.

    `accepted` is tokens emitted by rounds over rounds, `low` and `high` its
    bootstrap interval over prompts. Target and tokenizer are those of `plain`.

    Raises:
      ValueError: prompts that are not there.
    """
    prompts = read_prompts(self.prompts, limit=self.skip + self.limit)
    prompts = prompts[self.skip :]
    if not prompts:
      raise ValueError(
        f'{self.prompts} has no line behind the first {self.skip}; lower skip.'
      )
    asked, params = to_ask(prompts, self.chat), plain.params
    decoder = Decoder(method=method, params=params, tokenizer=plain.tokenizer)

    def look(learned: Any, step: int) -> Mapping[str, float]:
      del step
      now = params.replace(drafter=cast(learned, params.target.dtype))
      decoder.method, decoder.params = (
        (method, now) if vocab is None else vocab.wrap(method, now)
      )
      return figures(
        decoder.generate(
          asked,
          max_new_tokens=self.max_new_tokens,
          temperature=self.temperature,
          seed=self.seed,
          batch_size=min(self.batch, len(asked)),
        )
      )

    return look


def figures(out: Any) -> dict[str, float]:
  """Mean accepted of a `Generation`, with its interval over prompts."""
  tokens = [max(len(ids) - 1, 0) for ids in out.tokens]
  low, high = metrics.interval(tokens, out.rounds)
  return {
    'accepted': metrics.mean_accepted(tokens, out.rounds),
    'low': low,
    'high': high,
  }
