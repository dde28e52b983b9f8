"""Measures what rounds of a target cost on this device, for `caddtree`.

  python -m experiments.profile_latency --out=runs/latency.json
  python -m experiments.profile_latency --target=FOLDER --drafter=FOLDER \
    --sizes=1,17,33,65,129 --contexts=512,2048,8192 --out=FILE

Timed are the pieces of the real compiled round, greedy, on random ids: per
context and size the target's pass over a tree of so many rows with its mask,
its head, the rule and the gather along the path; per context, once, what does
not depend on the size: drafter, tree building, cache writes and emission, of
which the table keeps the mean over contexts. Every piece runs several times in
one program, programs take turns, and the median counts. Where attention reads
all slots of a cache, a context is charged for the smallest cache that holds it.
"""

from __future__ import annotations

import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import app, flags

from experiments import pieces, run
from experiments.states import after_prompt
from experiments.tables import aligned
from experiments.timing import interleaved
from specjax import api
from specjax.decoder import Decoder
from specjax.inputs import make_rows
from specjax.trees.costed import LatencyTable, target_sizes
from specjax.types import DecodeState

SIZES = (1, 9, 17, 33, 65)
CONTEXTS = (128, 512, 2048, 4096, 8192)  # those that the target can hold

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder or hub id.', flag_values=_FLAGS
)
_DRAFTER = flags.DEFINE_string(
  'drafter', None, 'A DFlash folder or hub id.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'JSON file for the table.', flag_values=_FLAGS
)
_SIZES = flags.DEFINE_list(
  'sizes', None, f'Rows verified; {SIZES}.', flag_values=_FLAGS
)
_CONTEXTS = flags.DEFINE_list(
  'contexts', None, f'Tokens; {CONTEXTS}.', flag_values=_FLAGS
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'auto', api.DTYPES, 'Weights and compute.', flag_values=_FLAGS
)
_BATCH = flags.DEFINE_integer(
  'batch', 1, 'Rows decoded together.', flag_values=_FLAGS
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 15, 'Turns of every piece.', flag_values=_FLAGS
)
_INNER = flags.DEFINE_integer(
  'inner', 8, 'Runs of a piece per turn.', flag_values=_FLAGS
)


def profile(
  decoder: Decoder,
  *,
  sizes: Sequence[int] = SIZES,
  contexts: Sequence[int] | None = None,
  batch: int = 1,
  repeats: int = 15,
  inner: int = 8,
) -> LatencyTable:
  """Times the rounds of a method whose tree is best-first.

  Args:
    decoder: its tree has as many nodes as the last size.
    sizes: rows verified, root included.
    contexts: committed tokens; None takes those of `CONTEXTS` that fit.
    batch: rows decoded together: costs hold for this number.
    repeats: turns, after one that is not counted.
    inner: runs of a piece per turn.

  Raises:
    ValueError: names what does not fit, before anything is timed.
  """
  sizes, room = sorted(set(sizes)), decoder.method.path_rows + 1
  longest = decoder.config.max_length - room
  if contexts is None:
    contexts = [n for n in CONTEXTS if n <= longest] or [longest]
  contexts = sorted(set(contexts))
  if not sizes or sizes[0] < 1 or sizes[-1] != decoder.nodes:
    raise ValueError(
      f'sizes are {sizes}; give numbers of rows from 1 to {decoder.nodes}, the '
      'last of them included.'
    )
  if not contexts or contexts[0] < 2 or contexts[-1] > longest:
    raise ValueError(
      f'contexts are {contexts}; this target and tree allow 2 to {longest}.'
    )
  for name, value in (('batch', batch), ('repeats', repeats), ('inner', inner)):
    if value < 1:
      raise ValueError(f'{name} is {value}; it must be at least 1.')
  verify_ms, draft_ms = [], []
  total = len(contexts) * (len(sizes) + 3)
  with tqdm.tqdm(total=total, unit='piece', file=sys.stderr) as bar:
    for context in contexts:
      costs = _costs(decoder, context, sizes, batch, repeats, inner, bar)
      verify_ms.append(tuple(costs[n] for n in sizes))
      draft_ms.append(costs['draft'] + costs['commit'])
  return LatencyTable(
    contexts=tuple(contexts),
    sizes=tuple(sizes),
    verify_ms=tuple(verify_ms),
    draft_ms=statistics.mean(draft_ms),
    device=jax.devices()[0].device_kind,
    dtype=decoder.dtype,
    target=target_sizes(decoder.config),
  )


def _costs(
  decoder: Decoder, context: int, sizes, batch, repeats, inner, bar
) -> dict[Any, float]:
  """Median ms of every piece at one context."""
  method, params = decoder.method, decoder.params
  state = state_at(decoder, context, batch)
  drafted = pieces.drafted(method, params, state)
  parts = {n: pieces.checking(method, params, state, drafted, n) for n in sizes}
  parts['draft'] = pieces.drafting(method, params, state)
  parts['commit'] = pieces.committing(method, params, state, drafted)
  jobs = {}
  for name, part in parts.items():
    jobs[name] = pieces.job(*part, inner)
    bar.update()
  seconds = interleaved(jobs, repeats=repeats)
  bar.update()
  return {
    name: 1000 * statistics.median(times) / inner
    for name, times in seconds.items()
  }


def state_at(decoder: Decoder, context: int, batch: int) -> DecodeState:
  """Random ids that were read, and the token behind them: `context` in all."""
  method, config, room = (
    decoder.method,
    decoder.config,
    decoder.method.path_rows,
  )
  ids = np.random.default_rng(0).integers(
    config.vocab, size=(batch, context - 1)
  )
  rows = make_rows(
    ids.tolist(),
    vocab=config.vocab,
    max_length=config.max_length,
    max_new_tokens=room + 1,
  )
  return after_prompt(method, decoder.params, rows)


def main(argv: Sequence[str]) -> None:
  """Flags to a table and its file."""
  if argv[1:]:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  try:
    if _OUT.value is None:
      raise ValueError('say with --out where the table goes.')
    path = pathlib.Path(_OUT.value)
    if path.is_dir():
      raise ValueError(f'--out is the folder {path}; name a file.')
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = _numbers('sizes', _SIZES.value) or SIZES
    decoder = api.load(
      _TARGET.value,
      'ddtree',  # the tree of which caddtree takes the first rows
      _DRAFTER.value,
      nodes=max(sizes),
      dtype=_DTYPE.value,
    )
    table = profile(
      decoder,
      sizes=sizes,
      contexts=_numbers('contexts', _CONTEXTS.value),
      batch=_BATCH.value,
      repeats=_REPEATS.value,
      inner=_INNER.value,
    )
  except (OSError, ValueError) as error:
    sys.exit(f'error: {error}')
  table.write(
    path,
    batch=_BATCH.value,
    repeats=_REPEATS.value,
    inner=_INNER.value,
    drafter=repr(decoder.method.drafter),
    target_config=repr(decoder.config),
    versions=run.versions(),
    **run.device(),
  )
  print(as_text(table))


def as_text(table: LatencyTable) -> str:
  """Milliseconds of a pass: a line per context, a column per size."""
  lines = [['context', *map(str, table.sizes)]]
  for context, costs in zip(table.contexts, table.verify_ms, strict=True):
    lines.append([str(context), *(f'{ms:.3f}' for ms in costs)])
  return aligned(lines, left=0) + (
    f'\nms of a pass by rows verified; {table.draft_ms:.3f} ms for the rest of '
    f'a round; {table.device}, {table.dtype}'
  )


def _numbers(name: str, values: list[str] | None) -> list[int] | None:
  if values is None:
    return None
  try:
    return [int(x) for x in values]
  except ValueError:
    raise ValueError(
      f'{name} is {",".join(values)}; give whole numbers with commas between.'
    ) from None


if __name__ == '__main__':
  app.run(main)
