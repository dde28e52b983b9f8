"""What is asked of an engine and what it answers, on the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specjax.engine.slots import STOPS, Plan
from specjax.inputs import REFUSED, Rows, make_rows

if TYPE_CHECKING:
  from specjax.decoder import Decoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """One text to be continued; the settings of `Decoder.generate`, one row's.

  Unlike there, `seed` is this text's own, whatever its number.
  """

  prompt: Any  # a string, a list of ids, or a list of chat messages
  id: Hashable = None  # None: its number, counted from 0 in the order taken
  max_new_tokens: int = 96
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  seed: int = 0
  stop_ids: Sequence[int] | None = None
  stop: Sequence[str] | str = ()
  thinking: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """How a request ended."""

  tokens: list[int]  # new tokens only
  text: str | None  # None without a tokenizer
  finish_reason: str  # 'stop', 'length', 'cancelled' or 'error'
  accepted: list[int]  # per round: accepted drafts + 1, uncut by the cap
  logprobs: list[float] | None  # of the target, unwarped
  prompt_tokens: int
  error: str | None = None  # what was wrong, what is allowed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
  """News of one request; its last event has a result."""

  id: Hashable
  request: Any  # as it was given
  tokens: list[int]  # new since the last event; together `result.tokens`
  result: Result | None = None


@dataclasses.dataclass(kw_only=True, eq=False)
class Live:
  """A request that was taken and has not ended."""

  id: Hashable
  request: Any
  rows: Rows
  stop: tuple[str, ...]
  tokens: list[int] = dataclasses.field(default_factory=list)
  cancelled: bool = False

  @property
  def seen(self) -> int:
    """Tokens of prompt and answer that the host has."""
    return len(self.rows.prompts[0]) + len(self.tokens)


def as_request(item: Any) -> Request:
  """A request from itself, from its fields, or from a prompt alone.

  Raises:
    ValueError: names a field that no request has.
  """
  if isinstance(item, Request):
    return item
  if not isinstance(item, Mapping):
    return Request(prompt=item)
  known = [f.name for f in dataclasses.fields(Request)]
  for name in item:
    if name in REFUSED:
      raise ValueError(f'{name} is not supported; leave it out.')
    if name not in known:
      raise ValueError(
        f'a request has no setting {name!r}; it has {", ".join(known)}.'
      )
  if 'prompt' not in item:
    raise ValueError('a request needs a prompt.')
  return Request(**item)


def taken(decoder: Decoder, plan: Plan, item: Any, number: int) -> Live:
  """A checked request; all that can be wrong with it is found here.

  Raises:
    ValueError: what was given, what is allowed.
  """
  request = as_request(item)
  if not hashable(request.id):
    raise ValueError(
      f'id {request.id!r} cannot be looked up; give a string or a number.'
    )
  prompt = request.prompt
  if isinstance(prompt, np.ndarray):
    prompt = prompt.tolist()
  if not isinstance(prompt, Sequence):
    raise ValueError(
      f'prompt {str(prompt)[:40]!r} is no string, list of whole ids, or list '
      'of chat messages.'
    )
  stop_ids, stop = decoder.ends(request.stop_ids, request.stop)
  rows = make_rows(
    [decoder.encode(prompt, thinking=request.thinking)],
    vocab=decoder.config.vocab,
    max_length=plan.context,
    max_new_tokens=request.max_new_tokens,
    temperature=request.temperature,
    top_k=request.top_k,
    top_p=request.top_p,
    min_p=request.min_p,
    seed=[request.seed],
    stop_ids=stop_ids,
  )
  if len(rows.stop_ids) > STOPS:
    raise ValueError(
      f'{len(rows.stop_ids)} stop ids were given; a request may have {STOPS}.'
    )
  if plan.greedy_only and rows.temperature[0] > 0:
    raise ValueError(
      f'temperature is {request.temperature}; this engine was told that all '
      'requests are greedy. Serve without greedy_only.'
    )
  return Live(id=id_of(item, number), request=item, rows=rows, stop=stop)


def id_of(item: Any, number: int) -> Hashable:
  """The id a request came with, or its number; also of one that is refused."""
  given = item.get('id') if isinstance(item, Mapping) else None
  if isinstance(item, Request):
    given = item.id
  return number if given is None or not hashable(given) else given


def hashable(x: Any) -> bool:
  try:
    hash(x)
  except TypeError:
    return False
  return True


def refusal(
  item: Any, id: Hashable, error: Exception, prompt_tokens: int = 0
) -> Event:
  """The only event of a request that cannot be served."""
  what = str(error)
  if not isinstance(error, ValueError):  # not written for callers
    what = f'{type(error).__name__}: {what}'
  result = Result(
    tokens=[],
    text=None,
    finish_reason='error',
    accepted=[],
    logprobs=None,
    prompt_tokens=prompt_tokens,
    error=what,
  )
  return Event(id=id, request=item, tokens=[], result=result)
