"""Builds the indices that find rare tokens for EvoSpec's buffer.

  python -m experiments.build_indices --target=FOLDER --ranks=RANKS \
    --size=8192 --corpus=texts.jsonl --out=indices.safetensors

The semantic index multiplies the head with itself: seconds on an accelerator,
minutes on a CPU. Neighbours are tokens outside the list; give the size of the
smallest list that they will serve. Without --corpus there is no statistical
index. Build on texts that are not to be measured.
"""

from __future__ import annotations

import pathlib

import jax.numpy as jnp
from absl import app, flags

from experiments import run
from experiments.corpus import FIELDS, check_files, encoded, encoder
from specjax import text as text_lib
from specjax.vocab import indices as lib
from specjax.vocab.ranks import chosen
from specjax.weights.safetensors import load_target

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', None, 'Folder.', required=True, flag_values=_FLAGS
)
_RANKS = flags.DEFINE_string(
  'ranks', None, 'The fixed list.', required=True, flag_values=_FLAGS
)
_SIZE = flags.DEFINE_integer(
  'size', None, 'Tokens of it; by default all.', flag_values=_FLAGS
)
_CORPUS = flags.DEFINE_multi_string(
  'corpus', [], 'JSON-lines files.', flag_values=_FLAGS
)
_FIELDS = flags.DEFINE_list(
  'fields', FIELDS, 'Texts of a line.', flag_values=_FLAGS
)
_K = flags.DEFINE_integer(
  'k', 16, 'Neighbours per token and index.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'File to write.', required=True, flag_values=_FLAGS
)


def build() -> None:
  """Builds both indices, writes the file and prints what it holds."""
  check_files(_CORPUS.value, _OUT.value)
  weights = load_target(_TARGET.value, dtype=jnp.float32, stacked=True)
  vocab = weights.config.vocab
  tail_I = lib.tail_of(chosen(_RANKS.value, _SIZE.value, vocab), vocab)
  statistical = None
  if _CORPUS.value:
    tokenizer = text_lib.load_tokenizer(_TARGET.value)
    if tokenizer is None:
      raise ValueError(f'{_TARGET.value} has no tokenizer.')
    texts = encoded(_CORPUS.value, _FIELDS.value, encoder(tokenizer))
    statistical = lib.build_statistical(texts, tail_I, vocab, _K.value)
  semantic = lib.build_semantic(weights.head, tail_I, _K.value)
  made = lib.Indices(semantic=semantic, statistical=statistical)
  names = ', '.join(pathlib.Path(path).name for path in _CORPUS.value)
  lib.save_indices(made, _OUT.value, corpus=names)
  for name, index in (('semantic', semantic), ('statistical', statistical)):
    if index is not None:
      pairs = int((index.id_VC >= 0).sum())
      print(f'{name}: {pairs} pairs, {pairs / vocab:.1f} a token')
  print(f'{len(tail_I)} tokens in the tail; wrote {_OUT.value}')


main = run.command(build)


if __name__ == '__main__':
  app.run(main)
