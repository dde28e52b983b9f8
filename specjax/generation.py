"""What one call returns, put together on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax import metrics, sharding
from specjax.inputs import Rows
from specjax.types import DecodeState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
  """Figures of one call, pooled over its rows; times in seconds."""

  tokens: int  # new tokens, the prefill's included
  rounds: int
  mean_accepted: float  # tokens emitted by rounds / rounds; plain decoding is 1
  tau_paper: float  # mean over responses of the mean uncut walk
  prefill_s: float
  decode_s: float
  tokens_per_s: float  # tokens emitted by rounds / decode_s
  compile_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
  """Results by row; rows are prompts expanded by `n`, prompt-major."""

  tokens: list[list[int]]  # new tokens only
  text: list[str] | None  # None without a tokenizer
  accepted: list[list[int]]  # per round: accepted drafts + 1, uncut by the cap
  finish_reason: list[str]  # 'stop' or 'length'
  logprobs: list[list[float]] | None  # of the target, unwarped
  prompt_tokens: list[int]
  stats: Stats

  @property
  def rounds(self) -> list[int]:
    return [len(walks) for walks in self.accepted]


@dataclasses.dataclass(frozen=True)
class Host:
  """The parts of a state that leave the device."""

  tokens: np.ndarray
  length: np.ndarray
  stopped: np.ndarray
  rounds: np.ndarray
  walks: np.ndarray
  logprobs: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Part:
  """One batch, decoded."""

  host: Host
  length: np.ndarray  # of the prompts
  times: np.ndarray  # prefill, decode, compile


def to_host(state: DecodeState) -> Host:
  """Copies what a caller will see."""
  return Host(
    *sharding.on_host(
      (
        state.context.tokens_BT,
        state.context.length_B,
        state.stopped_B,
        state.rounds_B,
        state.walk_BR,
        state.logprob_BT,
      )
    )
  )


def join(
  rows: Rows,
  parts: Sequence[Part],
  tokenizer: Any,
  stop: Sequence[str],
  logprobs: bool,
) -> Generation:
  """All batches of a call; a row with a stop string is cut before it."""
  tokens, texts, accepted, reasons, logs = [], [], [], [], []
  for part in parts:
    host = part.host
    for b, first in enumerate(part.length):
      ids = host.tokens[b, first : host.length[b]].tolist()
      walks = host.walks[b, : host.rounds[b]].tolist()
      ids, text, walks, reason = ended(
        ids, walks, host.stopped[b], stop, tokenizer
      )
      tokens.append(ids)
      texts.append(text)
      accepted.append(walks)
      reasons.append(reason)
      if logprobs:
        logs.append(host.logprobs[b, first : first + len(ids)].tolist())
  by_rounds = sum(len(ids) - 1 for ids in tokens)
  rounds = sum(map(len, accepted))
  prefill_s, decode_s, compile_s = sum(part.times for part in parts).tolist()
  return Generation(
    tokens=tokens,
    text=texts if tokenizer else None,
    accepted=accepted,
    finish_reason=reasons,
    logprobs=logs if logprobs else None,
    prompt_tokens=[len(ids) for ids in rows.prompts],
    stats=Stats(
      tokens=by_rounds + len(tokens),
      rounds=rounds,
      mean_accepted=metrics.mean_accepted(by_rounds, rounds),
      tau_paper=metrics.tau_paper(accepted),
      prefill_s=prefill_s,
      decode_s=decode_s,
      tokens_per_s=by_rounds / decode_s,
      compile_s=compile_s,
    ),
  )


def ended(
  ids: list[int],
  walks: list[int],
  stopped: bool,
  stop: Sequence[str],
  tokenizer: Any,
) -> tuple[list[int], str | None, list[int], str]:
  """(ids, text, walks, finish reason) of a row, cut at a stop string."""
  reason = 'stop' if stopped else 'length'
  text = tokenizer.decode(ids) if tokenizer else None
  keep = _first_hit(ids, text, stop, tokenizer)
  if keep is not None:
    ids, reason = ids[:keep], 'stop'
    text = text[: min(text.find(s) for s in stop if s in text)]
    walks = walks[: metrics.rounds_for(walks, keep - 1)]
  return ids, text, walks, reason


def _first_hit(ids, text, stop, tokenizer) -> int | None:
  """How many tokens it takes until the text holds a stop string."""
  if not any(s in text for s in stop):
    return None
  low, high = 1, len(ids)  # a longer prefix never loses a string it held
  while low < high:
    middle = (low + high) // 2
    if any(s in tokenizer.decode(ids[:middle]) for s in stop):
      high = middle
    else:
      low = middle + 1
  return low
