"""Texts of JSON-lines files, and a target's responses, as ids for counting."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from specjax.models.config import ModelConfig
from specjax.text import Tokenizer
from specjax.training.corpus import open_corpus

FIELDS = 'prompt,question,answer'  # of a line, whichever it has


def encoder(tokenizer) -> Callable[[str], list[int]]:
  """Text to ids, without special tokens around it."""
  if isinstance(tokenizer, Tokenizer):
    return lambda text: (
      tokenizer.backend.encode(text, add_special_tokens=False).ids
    )
  return tokenizer.encode


def check_files(
  corpora: Sequence[str], out: str, *, folders: bool = False
) -> None:
  """Raises ValueError for what cannot be read or written, before long work."""
  for path in map(pathlib.Path, corpora):
    if not (path.is_file() or (folders and path.is_dir())):
      raise ValueError(f'there is no corpus {path}.')
  folder = pathlib.Path(out).parent
  if not folder.is_dir():
    raise ValueError(f'there is no folder {folder} for {out}; make it first.')


def encoded(
  paths: Sequence[str], fields: Sequence[str], encode: Callable
) -> Iterator[list[int]]:
  """Ids of each text of some JSON-lines files.

  Raises:
    ValueError: no such file, or a line that is no JSON object with one of the
      fields.
  """
  for path in map(pathlib.Path, paths):
    if not path.is_file():
      raise ValueError(f'there is no corpus {path}.')
    with path.open(encoding='utf-8') as file:
      for number, line in enumerate(file, start=1):
        texts = _texts(line, fields)
        if not texts:
          raise ValueError(
            f'{path}, line {number} is no JSON object with text in one of '
            f'{list(fields)}; name its fields with --fields.'
          )
        yield from map(encode, texts)


def responses(
  paths: Sequence[str], config: ModelConfig, tokenizer
) -> Iterator[list[int]]:
  """Each response of some corpora that this target wrote, its end included.

  Raises:
    ValueError: see `training.corpus.open_corpus`.
  """
  for path in paths:
    corpus = open_corpus(path, config, tokenizer)
    for i in range(len(corpus)):
      sample = corpus.read(i, features=False)
      yield sample.tokens[sample.prompt_length :].tolist()


def _texts(line: str, fields: Sequence[str]) -> list[str]:
  try:
    record = json.loads(line)
  except ValueError:
    return []
  record = record if isinstance(record, dict) else {}
  return [record[f] for f in fields if isinstance(record.get(f), str)]
