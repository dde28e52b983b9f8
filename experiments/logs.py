"""Where a training's figures go: JSON lines, TensorBoard, wandb."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from experiments import run

ROWS = 'train.jsonl'


@contextlib.contextmanager
def opened(
  folder: pathlib.Path, after: int, wandb: str | None = None
) -> Iterator[Callable[[dict[str, Any]], None]]:
  """A function that takes rows of figures, each with its `step`.

  Rows of steps later than `after` are of a run that was killed before it saved
  them: they will be computed again, and are dropped.

  Args:
    folder: of the run.
    after: the step that is gone on from.
    wandb: a project's name; None leaves it out.

  Raises:
    ValueError: wandb is asked for and not installed.
  """
  path = folder / ROWS
  rows = run.read_rows(path)
  if rows and rows[-1]['step'] > after:
    run.write_rows(path, [row for row in rows if row['step'] <= after])
  board, project = _tensorboard(folder, after), _wandb(folder, wandb)

  def log(row: dict[str, Any]) -> None:
    run.append_rows(path, [row])
    step = row['step']
    numbers = {k: x for k, x in row.items() if isinstance(x, int | float)}
    numbers.pop('step')
    if board is not None:
      for name, x in numbers.items():
        board.add_scalar(name, x, step)
    if project is not None:
      project.log(numbers, step=step)

  try:
    yield log
  finally:
    if board is not None:
      board.close()
    if project is not None:
      project.finish()


def _tensorboard(folder: pathlib.Path, after: int) -> Any:
  """A writer where tensorboardX is installed (the extra `train`)."""
  try:
    from tensorboardX import SummaryWriter
  except ImportError:
    return None
  return SummaryWriter(str(folder / 'tensorboard'), purge_step=after + 1)


def _wandb(folder: pathlib.Path, project: str | None) -> Any:
  if project is None:
    return None
  try:
    import wandb
  except ImportError:
    raise ValueError(
      f'wandb={project!r} needs the package wandb; install it, or leave the '
      'setting out.'
    ) from None
  return wandb.init(project=project, dir=str(folder), resume='allow')
