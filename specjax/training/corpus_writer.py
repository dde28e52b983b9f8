"""Makes a corpus's files, or those of them that are missing."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError

from specjax.checks import changes
from specjax.training.corpus import (
  FORMAT,
  MANIFEST,
  VERSION,
  Sample,
  crc_of,
  intact,
  read_manifest,
)
from specjax.weights.files import write_json, write_tensors

COUNTS = ('samples', 'tokens', 'wanted', 'ended')
Fill = Callable[[Sequence[int]], list[Sample]]


def write(
  folder: pathlib.Path,
  facts: Mapping[str, Any],
  plan: Mapping[str, Sequence[int]],
  fill: Fill,
  begin: Callable[[int], Any] = lambda done: None,
) -> dict[str, Any]:
  """Fills a folder file by file; goes on where it was interrupted.

  Args:
    folder: made if it is not there.
    facts: `target`, `template`, `features` and whatever else decides the
      texts; JSON. They must be those the folder was begun with.
    plan: which texts go into which file, in the order files are made.
    fill: makes the texts of a file.
    begin: told how many texts are there before the next is made.

  Returns:
    The manifest: format, version, facts, `planned` and `done` counts, and an
    entry per file.

  Raises:
    ValueError: a folder that holds something else; or no room or right to
      write, then what was written stays.
  """
  planned = {'samples': sum(map(len, plan.values())), 'shards': len(plan)}
  head = {'format': FORMAT, 'version': VERSION, **facts, 'planned': planned}
  try:
    folder.mkdir(parents=True, exist_ok=True)
    entries = _begun(folder, head)
    for part in folder.glob('*.part'):  # of a process that was killed
      part.unlink()
    begin(sum(entry['samples'] for entry in entries.values()))
    manifest = _write_manifest(folder, head, plan, entries)
    for name, ids in plan.items():
      if name not in entries:
        entries[name] = _write_shard(folder, name, fill(ids))
        manifest = _write_manifest(folder, head, plan, entries)
  except (OSError, SafetensorError) as error:
    raise ValueError(
      f'{folder} could not be written ({error}). Whole shards stay; when there '
      'is room, the same command goes on behind them.'
    ) from error
  return manifest


def _begun(folder: pathlib.Path, head: dict[str, Any]) -> dict[str, Any]:
  """Entries of files that are there, by name.

  Raises:
    ValueError: the folder holds something else.
  """
  if not (folder / MANIFEST).exists():
    if any(p.suffix != '.part' for p in folder.iterdir()):
      raise ValueError(
        f'{folder} is not empty and no corpus; give another --out.'
      )
    return {}
  old = read_manifest(folder)
  show = lambda value, other: str(value)[:60]
  if wrong := changes({k: old.get(k) for k in head}, head, show):
    raise ValueError(
      f'{folder} holds a corpus made otherwise: {"; ".join(wrong)}. It is '
      'left alone, so give another --out.'
    )
  return {e['file']: e for e in old['shards'] if intact(folder, e)}


def _write_manifest(folder, head, plan, entries) -> dict[str, Any]:
  """Names the files that are there, in the order of the plan."""
  shards = [entries[name] for name in plan if name in entries]
  done = {name: sum(entry[name] for entry in shards) for name in COUNTS}
  manifest = {**head, 'done': done, 'shards': shards}
  write_json(folder / MANIFEST, manifest)
  return manifest


def _write_shard(
  folder: pathlib.Path, name: str, samples: Sequence[Sample]
) -> dict[str, Any]:
  """Writes texts to one file; what the manifest says of it."""
  lengths = [len(sample.tokens) for sample in samples]
  tensors = {
    'token': np.concatenate([s.tokens for s in samples]).astype(np.int32),
    'offset': np.cumsum([0, *lengths], dtype=np.int64),
    'prompt': np.asarray([s.prompt_length for s in samples], np.int32),
    'id': np.asarray([s.id for s in samples], np.int64),
    'ended': np.asarray([s.ended for s in samples], bool),
    'temperature': np.asarray([s.temperature for s in samples], np.float32),
  }
  crc = crc_of(tensors)
  if samples[0].features is not None:
    joined = map(
      np.concatenate, zip(*(s.features for s in samples), strict=True)
    )
    tensors |= dict(zip(('taps', 'hidden'), joined, strict=True))
  write_tensors(folder / name, tensors, {'format': FORMAT})
  return {
    'file': name,
    'samples': len(samples),
    'tokens': sum(lengths),
    'wanted': sum(lengths) - int(tensors['prompt'].sum()),
    'ended': int(tensors['ended'].sum()),
    'bytes': (folder / name).stat().st_size,
    'crc': crc,
  }
