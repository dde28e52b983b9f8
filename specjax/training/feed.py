"""Batches of a corpus in a drawn order, packed, and a place to go on from.

Built on grain (Google, Apache-2.0): its order is a permutation computed from
the seed and the epoch, so a place in it is a few numbers, and nothing that was
read has to be read again to come back to it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from specjax.checks import check_whole
from specjax.training.batch import Batch
from specjax.training.corpus import Corpus

try:
  import grain
except ImportError as error:
  raise ImportError(
    'training is fed by grain, which is not installed; install the extra: '
    "pip install 'specjax[train]'."
  ) from error

BINS = 32  # rows that are packed together, at least: more of them, less padding
AHEAD = 4  # batches made before they are asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """What a feed makes of a corpus; a state is one of such a feed only."""

  rows: int  # of a micro-batch
  length: int  # tokens of a row
  micro: int = 1  # micro-batches of a step
  seed: int = 0
  epochs: int | None = None
  steps: int | None = None  # neither: without end
  pack: bool = True  # several texts in a row
  shuffle: bool = True
  features: bool = False

  def __post_init__(self):
    check_whole(1, rows=self.rows, micro=self.micro)
    check_whole(2, length=self.length)
    check_whole(0, seed=self.seed)
    if self.seed >= 2**32:
      raise ValueError(f'seed is {self.seed}; it must be below 2^32.')
    given = {'epochs': self.epochs, 'steps': self.steps}
    given = {name: x for name, x in given.items() if x is not None}
    check_whole(1, **given)
    if len(given) == 2:
      raise ValueError(f'give epochs or steps, not both: {given}.')


class Feed:
  """An iterator of (batch, ids of the texts in it); `close` ends its thread.

  A batch holds numpy arrays [micro, rows, length, ...]. A text longer than a
  row is cut at its end; one that then has nothing to draft is left out. The
  last batch of the last epoch is filled up with empty rows.
  """

  def __init__(self, corpus: Corpus, rows: int, length: int, **settings: Any):
    """Sees which texts fit.

    Args:
      corpus: or a part of one, see `Corpus.split`.
      rows: of a micro-batch.
      length: tokens of a row.
      **settings: see `Shape`: micro, seed, epochs or steps, pack, shuffle, and
        features, whether what the target says of the texts comes along.

    Raises:
      ValueError: a setting, or a corpus of which nothing is left or that has
        not what is asked for.
    """
    self.shape = Shape(rows=rows, length=length, **settings)
    if self.shape.features and not corpus.has_features:
      raise ValueError(
        f'{corpus.folder} holds no features of the target; make it with '
        '--features=taps, or leave features=True out.'
      )
    length_N, prompt_N = corpus.length_N, corpus.prompt_N
    keep_N = np.minimum(length_N, length) > prompt_N
    if not keep_N.any():
      raise ValueError(
        f'none of {len(keep_N)} texts has something to draft within {length} '
        f'tokens; the shortest prompt has {prompt_N.min()}. Give longer rows.'
      )
    self.texts = int(keep_N.sum())  # of an epoch
    self.dropped = len(keep_N) - self.texts
    self.cut = int((keep_N & (length_N > length)).sum())
    self._corpus = corpus.fingerprint
    self._step = 0
    pipe = iter(_pipeline(corpus, np.flatnonzero(keep_N), self.shape))
    self._held = [pipe]
    # Also before the interpreter ends, when grain cannot do it any more.
    self.close = weakref.finalize(self, _end, self._held)

  def __iter__(self) -> Iterator[tuple[Batch, list[int]]]:
    return self

  def __next__(self) -> tuple[Batch, list[int]]:
    if self._step == self.shape.steps:
      raise StopIteration
    result = next(self._pipe)
    self._step += 1
    return result

  def draw(self, params: Any) -> tuple[Batch, list[int]]:
    """The next batch, whatever the parameters (see `loop.Source`)."""
    del params
    return next(self)

  @property
  def _pipe(self) -> Any:
    if not self._held:
      raise ValueError('the feed was closed; make another one.')
    return self._held[0]

  def get_state(self) -> dict[str, Any]:
    """Where it stands, for JSON: behind the last batch that was handed out."""
    return {
      'corpus': self._corpus,
      'shape': dataclasses.asdict(self.shape),
      'step': self._step,
      'place': self._pipe.get_state(),
    }

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from there: the batches are the ones that would have come.

    The number of epochs or steps may have grown.

    Raises:
      ValueError: the state of a feed of other texts or of another shape.
    """
    was, now = state['shape'], dataclasses.asdict(self.shape)
    ends = ('epochs', 'steps')
    other = [k for k in now if k not in ends and was.get(k) != now[k]]
    if other:
      raise ValueError(
        'the feed was one of '
        + ', '.join(f'{k}={was.get(k)}' for k in other)
        + ' and this one has '
        + ', '.join(f'{k}={now[k]}' for k in other)
        + '; go on with the settings of the run, or begin a new one.'
      )
    if state['corpus'] != self._corpus:
      raise ValueError(
        f'the feed was one of the texts {state["corpus"]} and these are '
        f'{self._corpus}; go on with the corpus and the split of the run.'
      )
    self._step = state['step']
    self._pipe.set_state(state['place'])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Texts:
  """What grain reads from: texts as dicts of arrays, cut to a row."""

  corpus: Corpus
  at_M: np.ndarray
  length: int
  features: bool

  def __len__(self) -> int:
    return len(self.at_M)

  def __getitem__(self, i: int) -> dict[str, Any]:
    sample = self.corpus.read(int(self.at_M[i]), features=self.features)
    token_T = sample.tokens[: self.length]
    text = {
      'token': token_T,
      'wanted': np.arange(len(token_T)) >= sample.prompt_length,
      'id': sample.id,
    }
    if self.features:
      text['taps'] = sample.features.taps_TE[: self.length]
      text['hidden'] = sample.features.hidden_TD[: self.length]
    return text


def _end(held: list[Any]) -> None:
  while held:
    held.pop().close()


def _pipeline(corpus: Corpus, at_M: np.ndarray, shape: Shape) -> Any:
  """Source, order, epochs, packing, batches, working ahead."""
  count = shape.rows * shape.micro
  names = ['token', 'wanted', *(['taps', 'hidden'] if shape.features else [])]
  source = grain.MapDataset.source(
    _Texts(
      corpus=corpus, at_M=at_M, length=shape.length, features=shape.features
    )
  )
  # grain adds the epoch to the seed: seeds that are neighbours would share
  # orders.
  seed = int(np.random.SeedSequence(shape.seed).generate_state(1)[0])
  if shape.shuffle:
    source = source.shuffle(seed=seed)
  # No threads here: texts lie in memory, and order must not depend on them.
  texts = source.repeat(shape.epochs).to_iter_dataset(
    grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  )
  packed = grain.experimental.BestFitPackIterDataset(
    texts,
    length_struct={name: shape.length for name in names},
    num_packing_bins=max(count, BINS) if shape.pack else count,
    seed=seed,
    shuffle_bins=shape.pack and shape.shuffle,
    meta_features=['id'],
    max_sequences_per_bin=None if shape.pack else 1,
  )
  batches = packed.batch(count, batch_fn=lambda rows: _batch(rows, shape))
  return grain.experimental.ThreadPrefetchIterDataset(
    batches, prefetch_buffer_size=AHEAD
  )


def _batch(rows: list[dict[str, Any]], shape: Shape) -> tuple[Batch, list[int]]:
  """Rows, the missing ones empty, with a micro-batch's axis in front."""

  def stacked(name: str) -> np.ndarray:
    first = rows[0][name]
    all_RT = np.zeros((shape.micro * shape.rows, *first.shape), first.dtype)
    for row, one in zip(all_RT, rows, strict=False):
      row[...] = one[name]
    return all_RT.reshape(shape.micro, shape.rows, *first.shape)

  batch = Batch(
    token_BT=stacked('token'),
    wanted_BT=stacked('wanted'),
    text_BT=stacked('token_segment_ids'),
    position_BT=stacked('token_positions'),
    taps_BTE=stacked('taps') if shape.features else None,
    hidden_BTD=stacked('hidden') if shape.features else None,
  )
  return batch, [int(i) for row in rows for i in row['id']]
