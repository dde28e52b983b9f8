"""All figures and the page that shows them, from rows in the repository.

  python -m experiments.figures.gallery

Rows of ours are the JSON-lines files in experiments/data/results, each a copy
of the `rows.jsonl` of a run of `python -m experiments.paper`; published rows
are in experiments/data/published. Written are docs/results.md and the folder
docs/results.
"""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence

from absl import app, flags

from experiments import run
from experiments.figures import (
  depth,
  drawing,
  marks,
  prediction,
  speedup,
  split,
  throughput,
  vocabulary,
)
from experiments.figures.drawing import Plot
from experiments.figures.marks import PUBLISHED, Mark
from specjax.weights.files import replacing

PLOTS = tuple(
  module.FIGURE
  for module in (speedup, throughput, vocabulary, depth, split, prediction)
)
PAGE = 'results.md'
HEAD = """\
# Results

Published figures beside ours. Hollow marks are what others published, filled
marks are what was measured with this code; a caption names target and device of
both, and a figure of one device says nothing about another. This page and its
files are rebuilt, byte for byte but for the pictures, by

```bash
python -m experiments.figures.gallery
```

from `experiments/data/published/` (sources there) and
`experiments/data/results/` (how to add rows there).
"""

_FLAGS = run.flag_values(__name__)
_ROWS = flags.DEFINE_string(
  'rows', 'experiments/data/results', 'Folder of rows.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', 'docs', 'Folder of the page.', flag_values=_FLAGS
)


def gallery(rows: Sequence[Mark], out: pathlib.Path) -> None:
  """Writes the page and the files of every figure that has marks."""
  parts = [HEAD]
  for plot in PLOTS:
    found = plot.marks(rows)
    if found:
      drawing.write(plot, found, out / 'results')
    parts.append(section(plot, found))
  with replacing(out / PAGE) as part:
    part.write_text('\n'.join(parts), encoding='utf-8', newline='\n')


def section(plot: Plot, found: Sequence[Mark]) -> str:
  """Markdown of one figure."""
  if not found:
    return f'## {plot.title}\n\nNothing is measured here yet.\n'
  file = f'results/{plot.name}'
  others = sum(mark['source'] == PUBLISHED for mark in found)
  counts = f'{others} published rows, {len(found) - others} of ours'
  links = ', '.join(f'[{k}]({file}.{k})' for k in ('pdf', 'csv', 'tex'))
  return (
    f'## {plot.title}\n\n![{plot.title}]({file}.png)\n\n'
    f'{textwrap.fill(plot.caption(found), 79)}\n\n{counts}: {links}.\n'
  )


def show() -> None:
  """Flags to `gallery`, and what was written."""
  source = pathlib.Path(_ROWS.value)
  if not source.is_dir():
    raise ValueError(f'there is no folder {source}; give another --rows.')
  rows = marks.read_rows(source) if any(source.glob('*.jsonl')) else []
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  gallery(rows, out)
  print(f'{out / PAGE}: {len(PLOTS)} figures, {len(rows)} rows of ours')


main = run.command(show)


if __name__ == '__main__':
  app.run(main)
