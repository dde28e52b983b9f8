"""What the marks of a figure stand for: names, colours, shapes, devices.

A mark is a dict with the columns of the figure's CSV file. `source` says
whether it was published by others, which is drawn hollow, or measured here.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments import run
from experiments.roofline_published import Row, compare, read

Mark = dict[str, Any]
PUBLISHED, MEASURED = 'published', 'measured'
WHO = ('source', 'study', 'method', 'target', 'device')  # of every mark
WHO_TEX = {k: k for k in WHO if k != 'study'}  # heads of LaTeX tables
NAMES = {
  'ar': 'plain decoding',
  'lookup': 'prompt lookup',
  'draft_model': 'draft model',
  'eagle3': 'EAGLE-3',
  'dflash': 'DFlash',
  'ddtree': 'DDTree',
  'caddtree': 'CaDDTree',
  'taps': 'TAPS',
  'treeflash': 'TreeFlash',
  'jetspec': 'JetSpec',
}
TARGETS = {'default': 'packaged byte model'}
COLOURS = {
  'DFlash': '#0072B2',
  'Draft-OPD': '#56B4E9',
  'DDTree': '#E69F00',
  'TAPS': '#CC79A7',
  'TreeFlash': '#009E73',
  'EAGLE-3': '#D55E00',
  'plain decoding': '#000000',
  'draft model': '#8C564B',
  'prompt lookup': '#999999',
  'CaDDTree': '#B8A000',
  'JetSpec': '#332288',
}
SHAPES = {
  'Qwen3-4B': 'o',
  'Qwen3-8B': 's',
  'Qwen3-30B-A3B-Thinking-2507': 'D',
  'LLaMA-3.1-8B-Instruct': '^',
  'packaged byte model': 'P',
}
MORE_SHAPES = 'Xv<>hp*'
DEVICES = {'a40': 'NVIDIA A40', 'a800': 'NVIDIA A800', 'h200': 'NVIDIA H200'}
STUDIES = {
  'TAPS': 'TAPS study, arXiv:2606.00487',
  'TreeFlash': 'TreeFlash study, arXiv:2606.03819',
  'Draft-OPD': 'Draft-OPD study, arXiv:2605.29343',
  'EvoSpec': 'EvoSpec study, arXiv:2605.27390',
}

STUDY_OF = {'math500_throughput': 'Draft-OPD', 'med_throughput': 'EvoSpec'}


def read_rows(folder: str | pathlib.Path) -> list[Mark]:
  """All rows with a `table` in the JSON-lines files of a folder.

  Raises:
    ValueError: there are none.
  """
  folder = pathlib.Path(folder)
  rows = [
    row
    for path in sorted(folder.glob('*.jsonl'))
    for row in run.read_rows(path)
    if 'table' in row
  ]
  if not rows:
    raise ValueError(
      f'{folder} holds no rows for figures; give the run folder of '
      '`python -m experiments.paper`.'
    )
  return rows


def published(table: str) -> Iterable[tuple[dict[str, str], Row]]:
  """Rows of a published table, each with what the roofline says of it."""
  rows = read()
  pairs = zip(rows, compare(rows), strict=True)
  return [(row, found) for (name, row), found in pairs if name == table]


def study_of(table: str, row: Mapping[str, str]) -> str:
  """Who published a row; of speed-ups, one study names its hardware."""
  own = 'TAPS' if row.get('hardware') else 'TreeFlash'
  return STUDIES[STUDY_OF.get(table, own)]


def measured(rows: Sequence[Mark], table: str) -> list[tuple[Mark, Mark]]:
  """(row, who it is of) for the rows of a table."""
  return [(row, who(row)) for row in rows if row['table'] == table]


def who(row: Mapping[str, Any]) -> Mark:
  """The columns `WHO` of a measured row."""
  return {
    'source': MEASURED,
    'study': 'this project',
    'method': row['called'] or NAMES.get(row['method'], row['method']),
    'target': TARGETS.get(row['target'], row['target']),
    'device': device_text(row),
  }


def device_text(row: Mapping[str, Any]) -> str:
  """A device as captions name it; a CPU has no name but its cores."""
  count = row['devices']
  if row['platform'] == 'cpu':
    return f'{row["cpus"]} CPU cores, {row["system"]}'
  return f'{count} x {row["device"]}' if count > 1 else row['device']


def colour(method: str) -> str:
  return COLOURS.get(method, '#555555')


def shapes(targets: Iterable[str]) -> dict[str, str]:
  """A marker per target; unknown targets share those that are left."""
  found, more = {}, 0
  for target in sorted(set(targets)):
    if target in SHAPES:
      found[target] = SHAPES[target]
    else:
      found[target] = MORE_SHAPES[more % len(MORE_SHAPES)]
      more += 1
  return found


def places(marks: Sequence[Mark]) -> str:
  """What a caption says of who measured what on which device."""
  ours = {(m['target'], m['device']) for m in marks if m['source'] == MEASURED}
  others = {m['study'] for m in marks if m['source'] == PUBLISHED}
  parts = []
  if others:
    parts.append(f'Hollow marks: published ({"; ".join(sorted(others))}).')
  if ours:
    text = '; '.join(f'{target} on {device}' for target, device in sorted(ours))
    parts.append(f'Filled marks: measured here, {text}.')
  elif others:
    parts.append('Nothing is measured here yet.')
  return ' '.join(parts)
