"""Where the time of a round goes.

  python -m experiments.figures.split RUN_DIR

RUN_DIR is that of `python -m experiments.paper` with math500_speedup.gin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import app

from experiments.breakdown import PARTS
from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import Mark

COLOURS = {
  'draft': '#E69F00',
  'tree': '#CC79A7',
  'verify': '#0072B2',
  'commit': '#009E73',
  'rest': '#BBBBBB',
}


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """One mark per method and budget; nothing is published."""
  shares = [f'{part}_share' for part in COLOURS]
  return [
    {
      **who,
      'nodes': row['nodes'],
      'batch': row['batch'],
      'round_ms': row['round_ms'],
      **{name: row[name] for name in shares},
      'dtype': row['dtype'],
    }
    for row, who in marks.measured(rows, 'split')
  ]


def _panels(found: Sequence[Mark]) -> list[tuple[str, str]]:
  return list(dict.fromkeys(_panel(m) for m in found))


def _panel(mark: Mark) -> tuple[str, str]:
  return mark['target'], mark['device']


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """A panel per target and device, a bar per method and budget."""
  panels = _panels(found)
  all_axes = drawing.grid(figure, len(panels))
  for axes, panel in zip(all_axes, panels, strict=True):
    some = [m for m in found if _panel(m) == panel][::-1]
    names = [f'{m["method"]}, rows: {m["nodes"]}' for m in some]
    left = [0.0] * len(some)
    for part, colour in COLOURS.items():
      # Pieces are timed apart and may exceed the round: no negative bar.
      ms = [max(m[f'{part}_share'], 0.0) * m['round_ms'] for m in some]
      axes.barh(names, ms, left=left, color=colour, label=part)
      left = [a + b for a, b in zip(left, ms, strict=True)]
    axes.set(title=f'{panel[0]}\n{panel[1]}', xlabel='ms of a round')
    axes.grid(False, axis='y')
  drawing.labels(figure, all_axes)


FIGURE = Plot(
  name='split',
  tables=('split',),
  title='Time of a round',
  marks=marks_of,
  draw=draw,
  size=lambda found: (
    4.5 * min(len(_panels(found)), 4) + 0.5,
    1.2 + 0.2 * len(found),
  ),
  about=f'Time of a round by its parts ({", ".join(PARTS)}, and the rest), '
  'each timed apart in programs that take turns, batch 1. Where parts add up '
  'to more than the round, the bar is longer than the round.',
  columns=(
    *marks.WHO,
    *('nodes', 'batch', 'round_ms', *(f'{part}_share' for part in COLOURS)),
    'dtype',
  ),
  tex={
    **marks.WHO_TEX,
    'nodes': 'rows',
    'round_ms': 'round, ms',
    **{f'{part}_share': part for part in COLOURS},
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
