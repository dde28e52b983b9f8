"""One table for a README: what a method accepts, its speed, and its time split.

  python -m experiments.methods_table --gin_file=experiments/configs/table.gin

Runs `experiments.evaluate`, then `experiments.breakdown` on the same methods,
in two folders of the run folder, and prints Markdown. The same command goes on
where it was interrupted.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import gin
from absl import app

from experiments import run, tables
from experiments.breakdown import PARTS, breakdown
from experiments.evaluate import evaluate
from experiments.summary import with_right

CONFIG = 'experiments/configs/table.gin'
HEAD = (
  *('method', 'nodes', 'mean accepted [95%]', 'tok/s', 'x ar [95%]', 'equal'),
  *PARTS,
)


def methods_table(
  *,
  run_dir: str | pathlib.Path,
  methods: Sequence[Any] = (),
  target: str = 'default',
  drafters: Mapping[str, str] | None = None,
  temperature: float = 0.0,
  trained: bool = True,
) -> str:
  """Measures and gives the table.

  What is not named here is bound to `evaluate` and `breakdown` themselves.

  Args:
    run_dir: made, or gone on with.
    methods: as for `evaluate`.
    target: folder, hub id or 'default'.
    drafters: as for `evaluate`.
    temperature: of both.
    trained: False where drafters are random: then only times are measured, and
      nothing that depends on acceptance is shown.
  """
  folder = pathlib.Path(run_dir)
  given = {
    'methods': methods,
    'target': target,
    'drafters': drafters,
    'temperature': temperature,
  }
  measured: dict[str, Any] = {}
  if trained:
    part = folder / 'evaluate'
    part.parent.mkdir(parents=True, exist_ok=True)
    summaries = gin.get_configurable(evaluate)(run_dir=part, **given)
    measured = {s['label']: s for s in summaries}
  times = gin.get_configurable(breakdown)(run_dir=folder / 'times', **given)
  return as_markdown(times, measured)


def as_markdown(
  times: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]
) -> str:
  """A row per method; shares are of the round's own time."""
  lines = [HEAD]
  for row in times:
    s = measured.get(row['label'])
    figures = ('-',) * 4
    if s is not None:
      accepted = tables.spanned(s, 'mean_accepted')
      faster = tables.spanned(s, 'speed_up')
      equal = f'{s["texts_equal"]}/{s["prompts"]}'
      figures = (accepted, f'{s["tokens_per_s"]:.0f}', faster, equal)
    shares = (f'{row[f"{part}_share"]:.0%}' for part in PARTS)
    lines.append((row['label'], str(row['nodes']), *figures, *shares))
  summaries = [measured.get(row['label'], {}) for row in times]
  return tables.as_markdown(with_right(lines, summaries))


def show() -> None:
  """Flags to `methods_table`, printed."""
  folder, table = run.configured(methods_table)
  print(f'{table}\n\nrows: {folder}')


main = run.command(show)


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import methods_table as imported

  run.define_flags(imported.CONFIG)
  app.run(imported.main)
