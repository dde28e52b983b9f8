"""Prompt sets: the packaged one by name, any other by path."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

BUILTIN = {
  'gsm8k_test_20': pathlib.Path(__file__).parent / 'data/gsm8k_test_20.jsonl',
}
FIELD = 'prompt'
ANSWER = 'answer'


def read_prompts(source: str, *, limit: int | None = None) -> list[str]:
  """The `prompt` field of each line of a JSON-lines file, in order.

  Args:
    source: a name of `BUILTIN`, or the path of a file.
    limit: read so many lines at most.

  Raises:
    ValueError: names what is missing, or the line that cannot be read.
  """
  return _read(source, FIELD, limit, f'expected {{"{FIELD}": "..."}}')


def read_answers(
  source: str, *, limit: int | None = None, without: str
) -> list[str]:
  """The `answer` field of each line, as `read_prompts` reads the other one.

  Args:
    source: with the next as for `read_prompts`.
    limit: read so many lines at most.
    without: what to do where there are none, for the error.

  Raises:
    ValueError: names what is missing, or the line that cannot be read.
  """
  return _read(source, ANSWER, limit, without)


def _read(source: str, field: str, limit: int | None, hint: str) -> list[str]:
  """A field of each line."""
  if limit is not None and limit < 1:
    raise ValueError(f'limit is {limit}; it must be at least 1, or None.')
  path = BUILTIN.get(source) or pathlib.Path(source).expanduser()
  if not path.is_file():
    raise ValueError(
      f'prompts {source!r} are neither a file nor one of {sorted(BUILTIN)}.'
    )
  texts = []
  with path.open('rb') as file:
    for number, line in enumerate(file, start=1):
      if len(texts) == limit:
        break
      texts.append(_text_of(line, field, f'{path}, line {number}', hint))
  if not texts:
    raise ValueError(f'{path} holds no line.')
  return texts


def as_messages(prompt: str) -> list[dict[str, str]]:
  """A dialogue of one user turn, for the target's own chat template."""
  return [{'role': 'user', 'content': prompt}]


def to_ask(prompts: Sequence[str], chat: bool = True) -> list[Any]:
  """What a `Decoder` is asked: users' turns for its template, or raw text."""
  return [as_messages(prompt) if chat else prompt for prompt in prompts]


def _text_of(line: bytes, field: str, where: str, hint: str) -> str:
  try:
    record = json.loads(line)
  except ValueError as error:  # not UTF-8, or not JSON
    raise ValueError(f'{where} is not JSON in UTF-8: {error}.') from None
  text = record.get(field) if isinstance(record, dict) else None
  if not isinstance(text, str) or not text:
    raise ValueError(f'{where} has no text in the field {field!r}; {hint}.')
  return text
