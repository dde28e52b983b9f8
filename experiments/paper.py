"""One command per published table: measures it, and keeps rows for figures.

  python -m experiments.paper \
    --gin_file=experiments/configs/paper/math500_speedup.gin
  python -m experiments.figures.speedup RUN_DIR

Files of experiments/configs/paper without a target's name measure the packaged
model in minutes on a CPU; those with one take weights from folders of yours, on
an accelerator. Raw rows are in folders of the run folder, one per cell; one row
per method and setting goes to `rows.jsonl`, which is what figures read. The
same command goes on where it was interrupted, and never writes over a run of
other settings.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app

from experiments import paper_study, run
from experiments.concurrency_summary import pays
from experiments.paper_tables import Table, facts, overview
from experiments.tables import aligned, as_markdown

ROWS = 'rows.jsonl'
CONFIG = 'experiments/configs/paper/math500_speedup.gin'


def paper(*, run_dir: str | pathlib.Path, table: Table) -> list[dict[str, Any]]:
  """Measures a table.

  Args:
    run_dir: made, or gone on with if it was made with the same settings.
    table: one of `paper_tables`, or a `paper_study.Study`; what is not named
      there is bound to `evaluate`, `breakdown` and `concurrency` themselves.

  Returns:
    The rows for figures.
  """
  if not table.targets:
    raise ValueError('the table has no targets; give at least one.')
  folder = pathlib.Path(run_dir)
  run.open_folder(folder, facts(table))
  rows: list[dict[str, Any]] = []
  for part in table.measure(folder):
    rows += part
    run.write_rows(folder / ROWS, rows)  # figures of a long run so far
  return rows


def told(rows: Sequence[Mapping[str, Any]]) -> str:
  """What a terminal is told of a table's rows."""
  studied = paper_study.table(rows)
  parts = [
    as_markdown(studied) if studied[1:] else aligned(overview(rows), left=3)
  ]
  served = [row for row in rows if row['table'] == 'throughput']
  for target in dict.fromkeys(row['target'] for row in served):
    parts.append(f'\n{target}, by concurrent requests on this device:')
    parts += pays([r for r in served if r['target'] == target])
  return '\n'.join([*parts, f'\n{rows[0]["device"]}, {rows[0]["dtype"]}'])


def show() -> None:
  """Flags to `paper`, and its table."""
  folder, rows = run.configured(paper)
  print(f'{told(rows)}; rows: {folder / ROWS}')


main = run.command(show)


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import paper as imported

  run.define_flags(imported.CONFIG)
  app.run(imported.main)
