"""Published tables beside what the roofline model predicts for their rows.

What a table leaves out is filled in from its study's paper or public code, and
what neither gives is named an assumption in the row's note. A row that cannot
be predicted stays in the result, with the reason.

  TAPS, arXiv:2606.00487: devices are in the table; verified rows as in
    github.com/wzyyy-lab/TAPS-SP (64 nodes, DDTree 512, and the root).
  TreeFlash, arXiv:2606.03819: GH200; budgets count the root.
  Draft-OPD, arXiv:2605.29343: SGLang on H200; a DFlash block of 16.
  EvoSpec, arXiv:2605.27390: the table of medical questions.
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from experiments.roofline_model import Device, Setting
from experiments.roofline_presets import (
  EAGER_LAUNCH_US,
  TARGETS,
  device_of,
  drafter_of,
)
from experiments.roofline_rounds import Drafter, predict
from specjax.models.config import ModelConfig

DATA = pathlib.Path(__file__).parent / 'data' / 'published'
TABLES = ('math500_speedup', 'math500_throughput', 'med_throughput')
TARGET_NAMES = {
  'Qwen3-4B': 'qwen3-4b',
  'Qwen3-8B': 'qwen3-8b',
  'Qwen3-30B-A3B-Thinking-2507': 'qwen3-30b-a3b',
  'LLaMA-3.1-8B-Instruct': 'llama-3.1-8b',
}
METHOD_NAMES = {
  'DFlash': 'dflash',
  'Draft-OPD': 'dflash',  # another training of the same drafter
  'DDTree': 'ddtree',
  'TAPS': 'taps',
  'TreeFlash': 'treeflash',
  'EAGLE-3': 'eagle3',
}
TAPS_DEVICES = {
  'NVIDIA A40-48GB GPU': 'a40',
  'NVIDIA A800-SXM4-80GB GPU': 'a800',
}
TAPS_ROWS = {  # and where they are from
  'DDTree': (513, 'rows from the public script'),
  'TAPS': (65, 'rows from the public script'),
  'EAGLE-3': (16, 'rows of the equal figure in DFlash'),
}
# Mean tokens in the cache. OUR CHOICE, as no table has it: half an answer of
# MATH-500 and its prompt, thinking off and on.
SHORT, LONG = 512, 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One published figure; `prediction`s are None where it is left out."""

  table: str
  method: str
  target: str
  temperature: str
  device: str = ''
  nodes: int | None = None
  batch: int | None = None
  context: int | None = None
  accepted: float | None = None
  unit: str
  published: float
  prediction: float | None = None
  prediction_eager: float | None = None
  note: str = ''

  @property
  def left(self) -> float | None:
    """Share of a published round that the prediction does not need."""
    if self.prediction is None:
      return None
    return 1 - self.published / self.prediction

  @property
  def left_eager(self) -> float | None:
    """The same for a stack that launches every kernel from the host."""
    if self.prediction_eager is None:
      return None
    return 1 - self.published / self.prediction_eager


def read(folder: pathlib.Path = DATA) -> list[tuple[str, dict[str, str]]]:
  """(table, row) of all published tables, in their order.

  Raises:
    ValueError: a table is missing.
  """
  rows = []
  for table in TABLES:
    path = folder / f'{table}.csv'
    if not path.is_file():
      raise ValueError(f'there is no {path}; it comes with the project.')
    with path.open(newline='', encoding='utf-8') as file:
      rows += [(table, row) for row in csv.DictReader(file)]
  return rows


def compare(rows: Sequence[tuple[str, dict[str, str]]]) -> list[Row]:
  """A `Row` for every published one, in the same order."""
  kinds = {
    'math500_speedup': _speed_up,
    'math500_throughput': _throughput,
    'med_throughput': _left_out,
  }
  return [kinds[table](table, row) for table, row in rows]


def _speed_up(table: str, row: dict[str, str]) -> Row:
  method, notes = row['method'], []
  if row['hardware'] in TAPS_DEVICES:
    device, notes = TAPS_DEVICES[row['hardware']], ['TAPS study']
    nodes, source = TAPS_ROWS.get(method, (None, ''))
    notes += [source] if source else []
  elif row['draft_budget'] and not row['hardware']:
    device, nodes = 'gh200', int(row['draft_budget'])
    notes = ['TreeFlash study', 'device second-hand']
  else:
    return _published(
      table, row, 'speed-up', note='left out: no known hardware or study'
    )
  if method == 'EAGLE-3':
    notes.append('7 levels of 10 nodes as in DFlash')
  return _predicted(table, row, 'speed-up', device, nodes, 1, SHORT, notes)


def _throughput(table: str, row: dict[str, str]) -> Row:
  notes = ['Draft-OPD study']
  if 'A3B' in row['target']:
    notes.append('drafter as of Qwen3-Coder-30B-A3B assumed')
  batch = int(row['concurrency'])
  return _predicted(table, row, 'tokens/s', 'h200', None, batch, LONG, notes)


def _left_out(table: str, row: dict[str, str]) -> Row:
  return _published(
    table,
    row,
    'tokens/s',
    note='left out: neither hardware nor accepted length is published',
  )


def _predicted(
  table: str,
  row: dict[str, str],
  unit: str,
  device: str,
  nodes: int | None,
  batch: int,
  context: int,
  notes: list[str],
) -> Row:
  if row['method'] not in METHOD_NAMES or row['target'] not in TARGET_NAMES:
    return _published(
      table, row, unit, note='left out: no sizes of this target or method'
    )
  target = TARGETS[TARGET_NAMES[row['target']]]
  drafter = drafter_of(METHOD_NAMES[row['method']], target)
  at = Setting(
    nodes=drafter.depth + 1 if nodes is None else nodes,
    accepted=float(row['acceptance_length']),
    batch=batch,
    context=context,
  )
  figure = lambda us: _figure(
    unit, target, drafter, device_of(device, launch_us=us), at
  )
  return _published(
    table,
    row,
    unit,
    device=device,
    nodes=at.nodes,
    batch=batch,
    context=context,
    accepted=at.accepted,
    prediction=figure(None),
    prediction_eager=figure(EAGER_LAUNCH_US) if unit == 'speed-up' else None,
    note='; '.join(notes),
  )


def _figure(
  unit: str,
  target: ModelConfig,
  drafter: Drafter,
  device: Device,
  at: Setting,
) -> float:
  found = predict(target, drafter, device, at)
  return found.speed_up if unit == 'speed-up' else found.tokens_per_s


def _published(table: str, row: dict[str, str], unit: str, **more: Any) -> Row:
  name = 'speedup' if unit == 'speed-up' else 'throughput_tok_s'
  return Row(
    table=table,
    method=row['method'],
    target=row['target'],
    temperature=row.get('temperature', ''),
    unit=unit,
    published=float(row[name]),
    **more,
  )


COLUMNS = (
  *(field.name for field in dataclasses.fields(Row) if field.name != 'note'),
  'left',
  'left_eager',
  'note',
)


def as_record(row: Row) -> dict[str, Any]:
  """The row by `COLUMNS`."""
  return {name: getattr(row, name) for name in COLUMNS}
