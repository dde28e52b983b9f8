"""Speed-up over plain decoding against the draft budget.

  python -m experiments.figures.speedup RUN_DIR

RUN_DIR is that of `python -m experiments.paper` with math500_speedup.gin.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from absl import app

from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import PUBLISHED, Mark
from experiments.summary import PLAIN

UNKNOWN = ''  # the temperature of a study that does not tell it


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """Published rows, then ours; plain decoding is the line at 1."""
  found = [_published(*pair) for pair in marks.published('math500_speedup')]
  for row, who in marks.measured(rows, 'speedup'):
    if row['label'] == PLAIN:
      continue
    found.append(
      {
        **who,
        'temperature': f'{row["temperature"]:g}',
        'nodes': row['nodes'],
        'speed_up': row['speed_up'],
        'low': row['speed_up_low'],
        'high': row['speed_up_high'],
        'accepted': row['mean_accepted'],
        'accepted_low': row['mean_accepted_low'],
        'accepted_high': row['mean_accepted_high'],
        'prompts': row['prompts'],
        'equal': row['texts_equal'],
        'dtype': row['dtype'],
      }
    )
  return found


def _published(row: dict[str, str], found: Any) -> Mark:
  return {
    'source': PUBLISHED,
    'study': marks.study_of('math500_speedup', row),
    'method': row['method'],
    'target': row['target'],
    'device': row['hardware'] or 'not in the table',
    'temperature': row['temperature'] or UNKNOWN,
    'nodes': found.nodes,
    'speed_up': float(row['speedup']),
    'accepted': float(row['acceptance_length']),
  }


def _panels(found: Sequence[Mark]) -> list[str]:
  """Temperatures, that of the study that tells none behind the others."""
  return sorted(
    {m['temperature'] for m in found}, key=lambda t: (t == UNKNOWN, t)
  )


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """A panel per temperature."""
  panels, shapes = _panels(found), marks.shapes(m['target'] for m in found)
  all_axes = drawing.grid(figure, len(panels), sharey=True)
  for axes, temperature in zip(all_axes, panels, strict=True):
    some = [m for m in found if m['temperature'] == temperature]
    key = lambda m: tuple(m[name] for name in marks.WHO)
    for _, group in itertools.groupby(sorted(some, key=key), key):
      line = sorted(group, key=lambda m: m['nodes'])
      # Targets stand side by side: two may have the same figures.
      at = list(shapes).index(line[0]['target']) - (len(shapes) - 1) / 2
      x = [m['nodes'] * 2 ** (0.14 * at) for m in line]
      look = drawing.look(line[0], shapes[line[0]['target']])
      axes.plot(x, [m['speed_up'] for m in line], linewidth=0.5, **look)
      for place, mark in zip(x, line, strict=True):
        drawing.whiskers(axes, place, mark, 'low', 'high')
    axes.axhline(1, color='black', linewidth=0.6)
    drawing.powers_of_two(axes, [m['nodes'] for m in some])
    known = f'temperature {temperature}'
    axes.set(
      title=known if temperature else 'temperature not given',
      xlabel='rows verified per round, root included',
      ylim=(0, None),
    )
  all_axes[0].set_ylabel('speed-up over plain decoding')
  drawing.legend(figure, found, shapes)


FIGURE = Plot(
  name='speedup',
  tables=('speedup',),
  title='Speed-up against draft budget',
  marks=marks_of,
  draw=draw,
  size=lambda found: drawing.sized(len(_panels(found))),
  about='Speed-up over plain decoding of the same target in the same run, '
  'against the rows verified per round, by method and temperature. Whiskers: '
  '95% bootstrap over prompts. The published rows are of MATH-500 on '
  'accelerators; rows verified in the TAPS study are those of its script.',
  columns=(
    *marks.WHO,
    *('temperature', 'nodes', 'speed_up', 'low', 'high'),
    *('accepted', 'accepted_low', 'accepted_high', 'prompts', 'equal', 'dtype'),
  ),
  tex={
    **marks.WHO_TEX,
    'temperature': 'T',
    'nodes': 'rows',
    'speed_up': 'speed-up',
    'low': 'low',
    'high': 'high',
    'accepted': 'accepted',
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
