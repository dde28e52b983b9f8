"""Which tokens are frequent: counting, ranking, and the files of both.

All of it is on the host. Our files are safetensors: `id` (int32, ascending),
`count` (int64, of the same ids) and `must` (int32, ids that no cut drops), with
the corpus, the tokenizer and the coverage as metadata. Lists published as JSON
are read too; their order is the rank.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.checks import whole
from specjax.weights.files import read_json, write_tensors

FORMAT = 'specjax token ranks'
TOKENIZERS = ('tokenizer.json', 'bytes.json')


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
  """A ranked vocabulary and where it comes from."""

  id_I: np.ndarray  # int32, ascending
  count_I: np.ndarray  # int64
  must_have: tuple[int, ...] = ()
  corpus: str = ''
  tokenizer: str = ''  # see `tokenizer_hash`
  coverage: float = float('nan')  # of a held-out text, see `coverage`

  def first(self, size: int) -> np.ndarray:
    """int32[size]: what `rank_tokens` gives for fewer ids.

    Raises:
      ValueError: more than there are, or fewer than must be there.
    """
    if not whole(size) or not 1 <= size <= len(self.id_I):
      raise ValueError(
        f'size is {size!r}; give a whole number from 1 to {len(self.id_I)}, or '
        'rank more tokens.'
      )
    count_V = np.full(int(np.max(self.id_I)) + 1, -1, np.int64)
    count_V[self.id_I] = self.count_I
    return rank_tokens(count_V, self.must_have, size)


def count_tokens(texts: Iterable[Sequence[int]], vocab: int) -> np.ndarray:
  """int64[V]: occurrences of each id in encoded texts.

  Encode them without special tokens, or the start token counts once a text.

  Raises:
    ValueError: an id that the target does not have.
  """
  count_V = np.zeros(vocab, np.int64)
  for text in texts:
    ids = np.asarray(text, np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
      raise ValueError(
        f'a text holds ids {ids.min()} to {ids.max()} and the target has 0 to '
        f"{vocab - 1}; encode it with this target's tokenizer."
      )
    count_V += np.bincount(ids, minlength=vocab)
  return count_V


def rank_tokens(
  count_V: np.ndarray, must_have: Sequence[int], size: int
) -> np.ndarray:
  """int32[size]: the ids to keep, ascending.

  First what must be there (end ids: a draft that cannot end costs a round per
  text), then by count, the lower id where counts are equal.

  Raises:
    ValueError: more ids than there are tokens, or fewer than must be there.
  """
  vocab = len(count_V)
  must = _distinct(must_have)
  if len(must) and not 0 <= must.min() <= must.max() < vocab:
    raise ValueError(
      f'must_have holds {must.min()} to {must.max()}; ids are 0 to {vocab - 1}.'
    )
  if not whole(size) or not max(len(must), 1) <= size <= vocab:
    raise ValueError(
      f'size is {size!r}; it is whole, at least {max(len(must), 1)}, what must '
      f'be in, and at most {vocab} (all tokens).'
    )
  order = np.argsort(-np.asarray(count_V), kind='stable')
  ranked = _distinct(np.concatenate([must, order]))
  return np.sort(ranked[:size]).astype(np.int32)


def coverage(count_V: np.ndarray, id_I: np.ndarray) -> float:
  """Share of a text's tokens that are in a list; nan for no text.

  It bounds the share that can be drafted. Measure it on texts that were not
  counted.
  """
  total = int(np.sum(count_V))
  return float(np.sum(count_V[id_I]) / total) if total else float('nan')


def tokenizer_hash(folder: str | os.PathLike) -> str:
  """Sixteen hex digits of a folder's tokenizer file; '' where it has none."""
  for name in TOKENIZERS:
    path = pathlib.Path(folder) / name
    if path.exists():
      return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
  return ''


def save_ranks(ranks: Ranks, path: str | os.PathLike) -> None:
  """Writes a file as a whole; the reverse of `load_ranks`."""
  tensors = {
    'id': np.asarray(ranks.id_I, np.int32),
    'count': np.asarray(ranks.count_I, np.int64),
    'must': np.asarray(ranks.must_have, np.int32),
  }
  metadata = {
    'format': FORMAT,
    'corpus': ranks.corpus,
    'tokenizer': ranks.tokenizer,
    'coverage': repr(float(ranks.coverage)),
  }
  write_tensors(path, tensors, metadata)


def load_ranks(path: str | os.PathLike) -> Ranks | list[int]:
  """Reads our own file, or a public list of ids in order of rank.

  Raises:
    ValueError: what the file is instead, and for a PyTorch list how to convert
      it (it is a pickle, which only torch reads).
  """
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise ValueError(f'{path} is no file; give one of token ranks.')
  if path.suffix in ('.pt', '.pth', '.bin'):
    new = path.with_suffix('.json').name
    raise ValueError(
      f'{path} is a PyTorch file; where torch is installed, convert it with\n'
      f'  python -c "import json, torch; json.dump([int(i) for i in torch.load('
      f"'{path.name}')], open('{new}', 'w'))\"\nand give {new}."
    )
  if path.suffix == '.json':
    ids = read_json(path)
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
      raise ValueError(f'{path} is no JSON list of whole ids.')
    return ids
  try:
    with safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
      if metadata.get('format') != FORMAT:
        raise ValueError(f'{path} holds no token ranks but {metadata}.')
      return Ranks(
        id_I=file.get_tensor('id'),
        count_I=file.get_tensor('count'),
        must_have=tuple(file.get_tensor('must').tolist()),
        corpus=metadata['corpus'],
        tokenizer=metadata['tokenizer'],
        coverage=float(metadata['coverage']),
      )
  except (SafetensorError, KeyError) as error:
    raise ValueError(
      f'{path} is neither a file of token ranks nor a .json list ({error}).'
    ) from error


def chosen(ranks: Any, size: int | None, vocab: int) -> np.ndarray:
  """int32[I]: the distinct ids of a list or file, ascending.

  Public lists may be unsorted and hold an id twice (a forced end token); each
  counts once, and the order decides what a smaller size keeps.

  Args:
    ranks: a path, `Ranks`, or ids in order of rank.
    size: keep so many; None keeps all.
    vocab: tokens of the target.

  Raises:
    ValueError: what is no list of ids, an empty one, an id that the target
      does not have, or a size that the list does not have.
  """
  if isinstance(ranks, (str, os.PathLike)):
    ranks = load_ranks(ranks)
  ids = _distinct(ranks.id_I if isinstance(ranks, Ranks) else ranks)
  if not len(ids):
    raise ValueError('the list of tokens is empty; give at least one id.')
  if not 0 <= ids.min() <= ids.max() < vocab:
    raise ValueError(
      f'the list holds ids {ids.min()} to {ids.max()} and the target has 0 to '
      f"{vocab - 1}; take a list made with this target's tokenizer."
    )
  if size is None:
    return np.sort(ids).astype(np.int32)
  if not whole(size) or not 1 <= size <= len(ids):
    raise ValueError(
      f'size is {size!r}; the list has {len(ids)} distinct ids and the target '
      f'{vocab} tokens, so give 1 to {len(ids)}, or rank more of them.'
    )
  if isinstance(ranks, Ranks):
    return ranks.first(size)
  return np.sort(ids[:size]).astype(np.int32)


def cut(ranks: Any, size: int | None, vocab: int) -> Ranks:
  """`chosen` as a file's content, with what is known of it.

  A list without counts gets falling ones, which keep its order.
  """
  if isinstance(ranks, (str, os.PathLike)):
    ranks = load_ranks(ranks)
  id_I = chosen(ranks, size, vocab)
  if isinstance(ranks, Ranks):
    kept = np.isin(ranks.id_I, id_I)
    return dataclasses.replace(
      ranks, id_I=ranks.id_I[kept], count_I=ranks.count_I[kept]
    )
  place = {id: i for i, id in enumerate(_distinct(ranks).tolist())}
  count_I = np.asarray([len(place) - place[i] for i in id_I.tolist()], np.int64)
  return Ranks(id_I=id_I, count_I=count_I)


def _distinct(ids: Any) -> np.ndarray:
  """int64[I]: each id once, where it stood first."""
  try:
    id_I = np.asarray(ids)
  except ValueError:  # lists within it, of different lengths
    id_I = np.asarray(None)
  # A cast would make ids of fractions, and of rows of a table.
  if id_I.ndim != 1 or (id_I.size and id_I.dtype.kind not in 'iu'):
    raise ValueError(
      f'the list of tokens is {str(ids)[:60]}; give whole ids in order of '
      'rank, or a file of them.'
    )
  ids = id_I.astype(np.int64)
  _, first = np.unique(ids, return_index=True)
  return ids[np.sort(first)]
