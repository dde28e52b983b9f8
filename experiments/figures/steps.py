"""Mean accepted on held-out prompts over the steps of trainings.

  python -m experiments.figures.steps --out=FOLDER Draft-OPD=RUN_DIR SFT=RUN_DIR

Each RUN_DIR is that of a training that looked at held-out prompts
(`loop.Pace.look`); trainings that went on from one checkpoint begin at step 0
of the figure. Bands are bootstrap intervals over prompts.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from experiments import logs, run
from experiments.figures import drawing
from experiments.tables import as_csv
from specjax.weights.files import replacing

COLUMNS = ('run', 'step', 'accepted', 'low', 'high')
COLOURS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7')

_FLAGS = run.flag_values(__name__)
_OUT = flags.DEFINE_string(
  'out', None, 'Folder.', required=True, flag_values=_FLAGS
)


def points(named: Sequence[str]) -> list[dict[str, Any]]:
  """A row per look of each run, given as NAME=RUN_DIR.

  Raises:
    ValueError: not so given, or a run that never looked.
  """
  found = []
  for entry in named:
    name, mark, folder = entry.partition('=')
    if not (name and mark and folder):
      raise ValueError(f'{entry!r} is no run; give NAME=RUN_DIR.')
    path = pathlib.Path(folder) / logs.ROWS
    looks = [row for row in run.read_rows(path) if 'high' in row]
    if not looks:
      raise ValueError(
        f'{path} holds no figures of held-out prompts; train with '
        'train.held_out, and loop.Pace.look for more than the last.'
      )
    found += [{k: row.get(k) for k in COLUMNS} | {'run': name} for row in looks]
  return found


def draw(axes: Any, found: Sequence[dict[str, Any]]) -> None:
  """A line with its band per run."""
  names = list(dict.fromkeys(row['run'] for row in found))
  for name, colour in zip(names, COLOURS, strict=False):
    rows = [row for row in found if row['run'] == name]
    step, middle, low, high = (
      [row[k] for row in rows] for k in ('step', 'accepted', 'low', 'high')
    )
    axes.plot(step, middle, color=colour, marker='o', label=name)
    axes.fill_between(step, low, high, color=colour, alpha=0.15, linewidth=0)
  axes.set_xlabel('steps')
  axes.set_ylabel('mean accepted, held out')
  axes.legend()


def write(found: Sequence[dict[str, Any]], out: pathlib.Path) -> None:
  """steps.csv, steps.pdf and steps.png."""
  with drawing.styled():
    from matplotlib.figure import Figure

    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / 'steps.csv') as part:
      part.write_text(as_csv(COLUMNS, found), encoding='utf-8', newline='\n')
    figure = Figure(figsize=(4.2, 2.8), layout='constrained')
    draw(figure.subplots(), found)
    drawing.save(figure, out, 'steps')


def main(argv: Sequence[str]) -> None:
  names = argv[1:]
  if not 1 <= len(names) <= len(COLOURS):
    raise app.UsageError(f'give one to {len(COLOURS)} runs, as NAME=RUN_DIR.')
  try:
    found = points(names)
    write(found, pathlib.Path(_OUT.value))
  except ValueError as error:
    sys.exit(f'error: {error}')
  print(f'{len(found)} looks; wrote {_OUT.value}/steps: csv, pdf, png')


if __name__ == '__main__':
  app.run(main)
