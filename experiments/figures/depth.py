"""How deep drafts are accepted.

  python -m experiments.figures.depth RUN_DIR

RUN_DIR is that of `python -m experiments.paper` with math500_speedup.gin.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from absl import app

from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import Mark

LINES = ('-', '--', ':', '-.')  # by budget, the largest first


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """One mark per method, budget, temperature and depth; nothing is published.

  Plain decoding drafts nothing and has no depth.
  """
  found = []
  for row, who in marks.measured(rows, 'speedup'):
    for depth, share in enumerate(row['acceptance_by_depth'], start=1):
      found.append(
        {
          **who,
          'temperature': f'{row["temperature"]:g}',
          'nodes': row['nodes'],
          'depth': depth,
          'share': share,
          'rounds': row['rounds'],
          'prompts': row['prompts'],
          'dtype': row['dtype'],
        }
      )
  return found


def _panels(found: Sequence[Mark]) -> list[tuple[str, str, str]]:
  return list(dict.fromkeys(_panel(m) for m in found))


def _panel(mark: Mark) -> tuple[str, str, str]:
  return mark['target'], mark['device'], mark['temperature']


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """A panel per target and temperature, a line per method and budget."""
  panels = _panels(found)
  all_axes = drawing.grid(figure, len(panels), sharey=True)
  for axes, panel in zip(all_axes, panels, strict=True):
    some = [m for m in found if _panel(m) == panel]
    key = lambda m: (m['method'], -m['nodes'])
    seen: dict[str, int] = {}
    for (method, nodes), group in itertools.groupby(sorted(some, key=key), key):
      line = sorted(group, key=lambda m: m['depth'])
      number = seen[method] = seen.get(method, -1) + 1
      style = drawing.look(line[0]) | {'linestyle': LINES[number % len(LINES)]}
      axes.plot(
        [m['depth'] for m in line],
        [m['share'] for m in line],
        label=f'{method}, rows: {-nodes}',
        markersize=2,
        **style,
      )
    axes.set(
      title=f'{panel[0]}, T = {panel[2]}\n{panel[1]}',
      xlabel='depth of the draft',
      ylim=(0, 1),
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
  all_axes[0].set_ylabel('share of rounds that kept as many drafts')
  drawing.labels(figure, all_axes)


FIGURE = Plot(
  name='depth',
  tables=('speedup',),
  title='Acceptance by depth',
  marks=marks_of,
  draw=draw,
  size=lambda found: drawing.sized(len(_panels(found))),
  about='Share of rounds that kept at least as many drafts, by method and rows '
  'verified; the shares of a line add up to the drafts kept per round.',
  columns=(
    *marks.WHO,
    *('temperature', 'nodes', 'depth', 'share', 'rounds', 'prompts', 'dtype'),
  ),
  tex={
    **marks.WHO_TEX,
    'temperature': 'T',
    'nodes': 'rows',
    'depth': 'depth',
    'share': 'share',
    'rounds': 'rounds',
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
