"""The table of docs/kernels.md: what compilers say of the kernels.

  python -m experiments.aot_table

Compiles every kernel at the sizes of four models for four devices, each in a
process of its own, and writes the table between the page's two marks. Needs the
extra `aot`. Nothing is run on a device: these are not speeds.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import app, flags

from experiments import aot_devices, run, tables

PAGE = run.ROOT / 'docs' / 'kernels.md'
BEGIN, END = '<!-- aot table -->', '<!-- end of aot table -->'
HEAD = (
  *('op', 'size', 'device', 'backend', 'registers', 'spilled bytes'),
  *('on-chip KiB', 'launches', 'argument MB', 'temp MB'),
)

_FLAGS = run.flag_values(__name__)
_DEVICES = flags.DEFINE_list(
  'devices',
  [*aot_devices.GPUS, *aot_devices.TPUS],
  'What to compile for.',
  flag_values=_FLAGS,
)
_PAGE = flags.DEFINE_string(
  'page', str(PAGE), 'Where the table goes.', flag_values=_FLAGS
)


def rows_for(device: str) -> list[dict[str, Any]]:
  """One row per kernel and size, from a process of its own.

  Raises:
    RuntimeError: a kernel did not compile; with the end of what was said.
  """
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.aot_kernels', f'--device={device}'],
    capture_output=True,
    text=True,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )
  if done.returncode:
    raise RuntimeError(f'compiling for {device}: {done.stderr[-2000:]}')
  return [json.loads(line) for line in done.stdout.splitlines()]


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
  """A line per row, ops and sizes together; what does not apply is a dash."""
  lines = [HEAD]
  order = {key: i for i, key in enumerate(dict.fromkeys(map(_key, rows)))}
  for row in sorted(rows, key=lambda row: order[_key(row)]):
    given = lambda name, scale=1, row=row: (
      f'{row[name] / scale:.4g}' if name in row else '-'
    )
    lines.append(
      (
        *(row['op'], row['size'], row['device'], row['backend']),
        *(given('registers'), given('spilled_bytes')),
        *(given('shared_bytes', 1024), given('launches')),
        *(given('argument_bytes', 1e6), given('temp_bytes', 1e6)),
      )
    )
  return tables.as_markdown(lines)


def into(page: str, table: str) -> str:
  """The page with another table between its marks.

  Raises:
    ValueError: the marks are not there, once each and in order.
  """
  before, begin, rest = page.partition(BEGIN)
  _, end, after = rest.partition(END)
  if not begin or not end:
    raise ValueError(f'the page needs the lines {BEGIN!r} and {END!r}.')
  made = f'jax {jax.__version__}; compiled, not run.'
  return f'{before}{begin}\n\n{made}\n\n{table}\n\n{end}{after}'


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
  return row['op'], row['size']


def write() -> None:
  """Compiles, device by device, and writes what there is after each."""
  lacking = [x for d in _DEVICES.value if (x := aot_devices.missing(d))]
  if lacking:
    raise ValueError('; '.join(dict.fromkeys(lacking)))
  page = pathlib.Path(_PAGE.value)
  into(page.read_text(), '')  # before the long work
  rows: list[dict[str, Any]] = []
  for device in _DEVICES.value:
    rows += rows_for(device)
    page.write_text(into(page.read_text(), as_markdown(rows)))


main = run.command(write)


if __name__ == '__main__':
  app.run(main)
