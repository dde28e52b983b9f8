"""What rounds should cost against what was published and what is measured.

  python -m experiments.figures.prediction RUN_DIR

Published rows are predicted by the roofline model of their device. Rows of ours
are too, where target, drafter and device have public sizes; else a speed-up is
predicted from the rounds timed in the same run: mean accepted times a round of
plain decoding over a round of the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from absl import app

from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import MEASURED, PUBLISHED, Mark, study_of
from experiments.roofline_model import Setting
from experiments.roofline_presets import (
  METHODS,
  TARGETS,
  device_named,
  drafter_of,
)
from experiments.roofline_published import (
  COLUMNS,
  LONG,
  SHORT,
  TARGET_NAMES,
  as_record,
)
from experiments.roofline_rounds import predict
from experiments.summary import PLAIN

UNITS = ('speed-up', 'tokens/s')
SHAPES = {'gh200': 'o', 'a800': 's', 'a40': '^', 'h200': 'D'}


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """All published rows with a prediction or a reason, then ours."""
  found = []
  for table in ('math500_speedup', 'math500_throughput', 'med_throughput'):
    for row, said in marks.published(table):
      mark = {
        **as_record(said),
        'source': PUBLISHED,
        'study': study_of(table, row),
        'value': said.published,
      }
      found.append(mark)
  times = {
    (who['target'], who['device'], row['label']): row['round_ms']
    for row, who in marks.measured(rows, 'split')
  }
  for row, who in marks.measured(rows, 'speedup'):
    if row['label'] != PLAIN:
      found.append(_speed_up(row, who, times))
  for row, who in marks.measured(rows, 'throughput'):
    found.append(_throughput(row, who))
  return found


def _speed_up(row: Mark, who: Mark, times: Mapping[Any, float]) -> Mark:
  at = Setting(
    nodes=row['nodes'],
    accepted=row['mean_accepted'],
    batch=row['batch'],
    context=LONG if row['thinking'] else SHORT,
  )
  mark = _measured('speedup', 'speed-up', row, who, at, row['speed_up'])
  mark['temperature'] = f'{row["temperature"]:g}'
  key = who['target'], who['device']
  plain, own = (times.get((*key, name)) for name in (PLAIN, row['label']))
  if mark['prediction'] is None and plain and own:
    mark['prediction'] = at.accepted * plain / own
    mark['left'] = 1 - mark['value'] / mark['prediction']
    mark['note'] = 'from the times of a greedy round, same run'
  return mark


def _throughput(row: Mark, who: Mark) -> Mark:
  at = Setting(
    nodes=row['nodes'],
    accepted=row['mean_accepted'],
    batch=row['concurrency'],
    context=LONG if row['thinking'] else SHORT,
  )
  return _measured('throughput', 'tokens/s', row, who, at, row['tokens_per_s'])


def _measured(
  table: str, unit: str, row: Mark, who: Mark, at: Setting, value: float
) -> Mark:
  """A row of ours with the roofline's prediction where there can be one."""
  device = device_named(row['device']) if row['devices'] == 1 else None
  target = TARGET_NAMES.get(row['target'])
  prediction, note = None, 'left out: no public sizes of device or target'
  if device and target and row['method'] in METHODS:
    net = TARGETS[target]
    try:
      said = predict(net, drafter_of(row['method'], net), device, at)
      prediction = said.speed_up if unit == 'speed-up' else said.tokens_per_s
      note = 'roofline'
    except ValueError as error:  # another drafter than the published one
      note = f'left out: {error}'
  left = None if prediction is None else 1 - value / prediction
  return {
    **who,
    'table': table,
    'nodes': at.nodes,
    'batch': at.batch,
    'context': at.context if prediction else None,
    'accepted': at.accepted,
    'unit': unit,
    'value': value,
    'prediction': prediction,
    'left': left,
    'note': note,
  }


def _panels(found: Sequence[Mark]) -> list[tuple[str, str]]:
  there = {(m['source'], m['unit']) for m in found if m['prediction']}
  order = [(s, u) for s in (PUBLISHED, MEASURED) for u in UNITS]
  return [panel for panel in order if panel in there]


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """Published and measured apart, speed-ups and tokens per second apart."""
  panels = _panels(found)
  all_axes = drawing.grid(figure, len(panels))
  for axes, (source, unit) in zip(all_axes, panels, strict=True):
    some = [
      m
      for m in found
      if (m['source'], m['unit']) == (source, unit) and m['prediction']
    ]
    for mark in some:
      shape = SHAPES.get(mark['device'], 'P')
      axes.plot(mark['value'], mark['prediction'], **drawing.look(mark, shape))
    values = [x for m in some for x in (m['value'], m['prediction'])]
    ends = min(values) / 1.1, max(values) * 1.1
    axes.plot(ends, ends, color='black', linewidth=0.8)
    axes.set(
      xscale='log',
      yscale='log',
      xlim=ends,
      ylim=ends,
      aspect='equal',
      xlabel=f'{source}, {unit}',
      ylabel=f'prediction, {unit}',
    )
    if ends[1] / ends[0] < 20:  # where powers of ten tell nothing
      ticks = [t for t in (0.2, 0.5, *range(1, 13)) if ends[0] < t < ends[1]]
      axes.set_xticks(ticks, [f'{t:g}' for t in ticks])
      axes.set_yticks(ticks, [f'{t:g}' for t in ticks])
      axes.minorticks_off()
  there = {m['device'] for m in found if m['prediction']}
  names = {d: s for d, s in SHAPES.items() if d in there}
  if there - names.keys():
    names['here'] = 'P'
  drawing.legend(figure, [m for m in found if m['prediction']], names)


FIGURE = Plot(
  name='prediction',
  tables=('speedup', 'throughput'),
  title='Prediction by a cost model against what was published and measured',
  marks=marks_of,
  draw=draw,
  size=lambda found: drawing.sized(len(_panels(found))),
  about='Prediction (vertical) against the published or measured figure '
  '(horizontal); on the line they agree, above it a better round is possible. '
  'Predictions are of the roofline model with the mean accepted of the row; '
  'rows on a device without public figures are predicted from the times of '
  'their own rounds. Left out are rows whose hardware or mean accepted is '
  'unknown; the note of each says why.',
  columns=(
    'source',
    'study',
    *('value' if name == 'published' else name for name in COLUMNS),
  ),
  tex={
    **marks.WHO_TEX,
    'nodes': 'rows',
    'batch': 'batch',
    'accepted': 'accepted',
    'unit': 'unit',
    'value': 'value',
    'prediction': 'prediction',
    'left': 'left',
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
