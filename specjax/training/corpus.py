"""Texts a drafter is trained on: their files, and whose texts they are.

A corpus is a folder: `manifest.json` and shards in safetensors. A shard holds
whole texts: `token` (int32, all of them behind one another), `offset` (int64,
where each begins, and the end), `prompt` (int32, tokens of its prompt), `id`
(int64, its prompt's number, from 0), `ended` (bool) and `temperature`
(float32); and where the target's features are kept, `taps` and `hidden`
(bfloat16), a row per token. A shard is written whole and named in the manifest
after that, so a run that is killed leaves a corpus that can be gone on with.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import zlib
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.checks import check_whole
from specjax.models.config import ModelConfig
from specjax.models.transformer import Weights
from specjax.training.fingerprints import check_maker, digest
from specjax.weights.files import read_settings

FORMAT, VERSION = 'specjax corpus', 1
MANIFEST = 'manifest.json'


class Features(NamedTuple):
  """What the target says of a text, as stored; bfloat16."""

  taps_TE: np.ndarray
  hidden_TD: np.ndarray


class Sample(NamedTuple):
  """One text: a prompt and the response behind it."""

  tokens: np.ndarray  # int32[T]
  prompt_length: int  # what stands before it is not drafted
  id: int  # the prompt's number
  features: Features | None = None
  ended: bool = True  # else it was cut and has no end token
  temperature: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
  """Texts by number, in the order of their prompts."""

  folder: pathlib.Path
  manifest: dict[str, Any]
  shards: tuple[dict[str, np.ndarray], ...]  # without features
  shard_N: np.ndarray  # int32; of each text, as are the next two
  row_N: np.ndarray  # int32
  id_N: np.ndarray  # int64, rising

  def __len__(self) -> int:
    return len(self.id_N)

  def __getitem__(self, i: int) -> Sample:
    return self.read(i, features=self.has_features)

  @property
  def has_features(self) -> bool:
    return self.manifest['features'] is not None

  @property
  def length_N(self) -> np.ndarray:
    """int64: tokens of each text."""
    return self._gather(lambda shard: np.diff(shard['offset']))

  @property
  def prompt_N(self) -> np.ndarray:
    """int32: tokens of each prompt."""
    return self._gather(lambda shard: shard['prompt'])

  @property
  def fingerprint(self) -> str:
    """Of what is read here, so of a part another one than of the whole."""
    sums = [shard['crc'] for shard in self.manifest['shards']]
    return digest(json.dumps(sums).encode() + self.id_N.tobytes())

  def read(self, i: int, *, features: bool) -> Sample:
    """A text, with what the target says of it or without."""
    if not -len(self) <= i < len(self):
      raise IndexError(f'text {i} of a corpus of {len(self)}')
    shard, row = int(self.shard_N[i]), int(self.row_N[i])
    part = self.shards[shard]
    first, end = part['offset'][row : row + 2].tolist()
    return Sample(
      tokens=part['token'][first:end],
      prompt_length=int(part['prompt'][row]),
      id=int(self.id_N[i]),
      features=self._features(shard, first, end) if features else None,
      ended=bool(part['ended'][row]),
      temperature=float(part['temperature'][row]),
    )

  def split(
    self, *, last: int | None = None, every: int | None = None
  ) -> tuple[Corpus, Corpus]:
    """(to train on, held out): the last texts, or every n-th from the first on.

    Raises:
      ValueError: not just one of them, or one that leaves nothing on a side.
    """
    if (last is None) == (every is None):
      raise ValueError('give either last or every.')
    n = len(self)
    check_whole(1, **({'last': last} if every is None else {'every': every}))
    at_N = np.arange(n)
    out_N = at_N >= n - last if every is None else at_N % every == 0
    if out_N.all() or not out_N.any():
      what = f'last={last}' if every is None else f'every={every}'
      raise ValueError(f'{what} leaves nothing on one side of {n} texts.')
    return self._take(~out_N), self._take(out_N)

  def _take(self, keep_N: np.ndarray) -> Corpus:
    names = ('shard_N', 'row_N', 'id_N')
    return dataclasses.replace(
      self, **{name: getattr(self, name)[keep_N] for name in names}
    )

  def _gather(self, of) -> np.ndarray:
    values = [of(shard) for shard in self.shards]
    first = np.cumsum([0, *map(len, values)])[:-1]
    return np.concatenate(values)[first[self.shard_N] + self.row_N]

  def _features(self, shard: int, first: int, end: int) -> Features:
    if not self.has_features:
      raise ValueError(
        f'{self.folder} holds no features of the target; make it with '
        '--features=taps, or let the trainer compute them.'
      )
    path = self.folder / self.manifest['shards'][shard]['file']
    with _open(path) as file:  # maps the file: nothing else of it is read
      return Features(
        *(file.get_slice(name)[first:end] for name in ('taps', 'hidden'))
      )


def open_corpus(
  folder: str | os.PathLike,
  target_config: ModelConfig | None = None,
  tokenizer: Any = None,
  *,
  weights: Weights | None = None,
  partial: bool = False,
) -> Corpus:
  """Opens a corpus, and checks that it is this target's.

  Tokens are in memory, features are read as they are asked for.

  Args:
    folder: what `experiments.make_corpus` wrote.
    target_config: of the target that is to read the texts; None is not checked,
      nor are texts that no target wrote (made with --answers).
    tokenizer: the target's; its ids and its chat template must be the same.
    weights: the target's; the very ones that wrote the responses.
    partial: take what is there of a corpus that was not finished.

  Raises:
    ValueError: no corpus or one of another version; unfinished or empty; made
      with another target or template, both named; a shard that is damaged.
  """
  folder = pathlib.Path(folder).expanduser()
  manifest = read_manifest(folder)
  check_maker(folder, manifest, target_config, tokenizer, weights)
  done, planned = manifest['done']['samples'], manifest['planned']['samples']
  if not done:
    raise ValueError(f'{folder} holds no text yet; go on making it first.')
  if done < planned and not partial:
    raise ValueError(
      f'{folder} holds {done} of {planned} texts; finish it with the command '
      'that began it, or open it with partial=True.'
    )
  shards = tuple(_read_shard(folder, entry) for entry in manifest['shards'])
  id_N = np.concatenate([shard['id'] for shard in shards])
  sizes = [len(shard['id']) for shard in shards]
  order_N = np.argsort(id_N, kind='stable')
  return Corpus(
    folder=folder,
    manifest=manifest,
    shards=shards,
    shard_N=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[order_N],
    row_N=np.concatenate([np.arange(n, dtype=np.int32) for n in sizes])[
      order_N
    ],
    id_N=id_N[order_N],
  )


def read_manifest(folder: pathlib.Path) -> dict[str, Any]:
  """A corpus's manifest.

  Raises:
    ValueError: there is none, or one of another format or version.
  """
  manifest = read_settings(folder / MANIFEST)
  if manifest.get('format') != FORMAT:
    raise ValueError(f'{folder / MANIFEST} is none of a {FORMAT}.')
  if manifest.get('version') != VERSION:
    raise ValueError(
      f'{folder} has format version {manifest.get("version")}; this code reads '
      f'{VERSION}. Make the corpus again.'
    )
  return manifest


def intact(folder: pathlib.Path, entry: dict[str, Any]) -> bool:
  """Is the file there, with its length? What is in it is not read."""
  path = folder / entry['file']
  return path.is_file() and path.stat().st_size == entry['bytes']


def _read_shard(folder: pathlib.Path, entry: dict) -> dict[str, np.ndarray]:
  """A shard without features; it is the one that was written."""
  path = folder / entry['file']
  damaged = ValueError(
    f'{path} is damaged or missing; the command that made the corpus, given '
    'again, makes it again.'
  )
  if not intact(folder, entry):
    raise damaged
  with _open(path) as file:
    tensors = {
      name: file.get_tensor(name)
      for name in file.keys()  # noqa: SIM118  not a mapping
      if name not in ('taps', 'hidden')
    }
  if crc_of(tensors) != entry['crc']:
    raise damaged
  return tensors


def _open(path: pathlib.Path):
  try:
    return safe_open(path, framework='numpy')
  except (SafetensorError, OSError) as error:
    raise ValueError(f'{path} is damaged or missing ({error}).') from error


def crc_of(tensors: dict[str, np.ndarray]) -> int:
  """Of tokens and their places; features are too many for it."""
  crc = 0
  for name in sorted(tensors):
    crc = zlib.crc32(np.ascontiguousarray(tensors[name]), crc)
  return crc
