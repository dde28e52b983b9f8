"""Ranks a target's tokens by how often they occur in texts.

  python -m experiments.rank_tokens --target=FOLDER --corpus=texts.jsonl \
    --size=8192 --out=ranks.safetensors [--held_out=other.jsonl]

A corpus is JSON lines, of which the text of the fields named by --fields
counts, whichever of them a line has; or a folder of `experiments.make_corpus`,
of which the responses do. End ids and what the chat template writes are always
kept. Rank on texts that are not to be measured, best on the target's own
answers.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from experiments import run
from experiments.corpus import (
  FIELDS,
  check_files,
  encoded,
  encoder,
  responses,
)
from specjax import text as text_lib
from specjax.vocab import ranks as ranks_lib
from specjax.weights.safetensors import read_config

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', None, 'Folder.', required=True, flag_values=_FLAGS
)
_CORPUS = flags.DEFINE_multi_string(
  'corpus',
  None,
  'JSON-lines files, or folders of corpora.',
  required=True,
  flag_values=_FLAGS,
)
_HELD_OUT = flags.DEFINE_multi_string(
  'held_out',
  [],
  'Files whose coverage is printed and stored.',
  flag_values=_FLAGS,
)
_FIELDS = flags.DEFINE_list(
  'fields', FIELDS, 'Texts of a line.', flag_values=_FLAGS
)
_SIZE = flags.DEFINE_integer(
  'size', None, 'Tokens to keep.', required=True, flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'File to write.', required=True, flag_values=_FLAGS
)


def must_have(tokenizer, eos_ids: Sequence[int]) -> tuple[int, ...]:
  """End ids, and the ids of an empty dialogue, as a template writes it."""
  ids = [*eos_ids, *tokenizer.eos_ids]
  if getattr(tokenizer, 'template', None) is not None:
    ids += tokenizer.chat([{'role': 'user', 'content': ''}])
  return tuple(dict.fromkeys(ids))


def rank() -> None:
  """Counts, writes the file and prints what it covers."""
  config = read_config(_TARGET.value)
  tokenizer = text_lib.load_tokenizer(_TARGET.value)
  if tokenizer is None:
    raise ValueError(f'{_TARGET.value} has no tokenizer.')
  must = must_have(tokenizer, config.eos_ids)
  # What cannot be is said before texts are counted.
  ranks_lib.rank_tokens(np.zeros(config.vocab), must, _SIZE.value)
  check_files([*_CORPUS.value, *_HELD_OUT.value], _OUT.value, folders=True)
  encode, fields = encoder(tokenizer), _FIELDS.value

  def count(paths: Sequence[str]) -> np.ndarray:
    folders = [path for path in paths if pathlib.Path(path).is_dir()]
    files = [path for path in paths if path not in folders]
    texts = itertools.chain(
      encoded(files, fields, encode), responses(folders, config, tokenizer)
    )
    return ranks_lib.count_tokens(texts, config.vocab)

  count_V, other_V = count(_CORPUS.value), count(_HELD_OUT.value)
  id_I = ranks_lib.rank_tokens(count_V, must, _SIZE.value)
  ranks = ranks_lib.Ranks(
    id_I=id_I,
    count_I=count_V[id_I],
    must_have=must,
    corpus=', '.join(pathlib.Path(path).name for path in _CORPUS.value),
    tokenizer=ranks_lib.tokenizer_hash(_TARGET.value),
    coverage=ranks_lib.coverage(other_V, id_I),
  )
  ranks_lib.save_ranks(ranks, _OUT.value)
  print(
    f'{len(id_I)} of {config.vocab} tokens, {(count_V > 0).sum()} occur; '
    f'coverage {ranks_lib.coverage(count_V, id_I):.4f} of {ranks.corpus}, '
    f'{ranks.coverage:.4f} held out; wrote {_OUT.value}'
  )


main = run.command(rank)


if __name__ == '__main__':
  app.run(main)
