"""Everything that only a GPU can show, by one command of eight minutes.

  python -m experiments.gpu_check --out=gpu_check.json

Checks and times the kernels, times rounds of full-size models with random
weights, and prints a verdict and short tables; nothing is downloaded. See
docs/gpu.md. The JSON file holds all rows and is rewritten after each, so that
it is right whenever the command ends. `--tiny` runs the same on a CPU, with
tiny shapes.

Kernels of each backend and rounds of each setting run in processes of their
own: a kernel that hangs, or that ends its process, costs its own row.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import pathlib
import secrets
import sys
import time
from typing import Any

from absl import app, flags

from experiments import run
from experiments.gpu import process, report, rounds, summary
from experiments.gpu.items import Row, not_run
from experiments.roofline_model import Device
from experiments.roofline_presets import device_named
from specjax.weights.files import write_json

_FLAGS = run.flag_values(__name__)


def _flag(define, name: str, default, text: str):
  return define(name, default, text, flag_values=_FLAGS)


_OUT = _flag(flags.DEFINE_string, 'out', 'gpu_check.json', 'JSON file.')
_TINY = _flag(flags.DEFINE_bool, 'tiny', False, 'Tiny shapes, for a CPU.')
_MINUTES = _flag(flags.DEFINE_float, 'minutes', 8.0, 'Bound of the whole.')
_PROGRAMS = _flag(
  flags.DEFINE_integer, 'programs', 20, 'Programs of full size, at most.'
)
_GB_S = _flag(
  flags.DEFINE_float, 'gb_s', None, 'Memory, 1e9 bytes/s; None: by its name.'
)
_SEED = _flag(
  flags.DEFINE_integer, 'seed', None, 'Of all inputs; None: a fresh one.'
)
KERNELS = 0.2  # of the time, for one backend's
REPORT_S = 10.0  # kept back for the end
TINY_PROGRAMS = 8  # those of the first setting


@dataclasses.dataclass
class Record:
  """What is known so far, on disk after each row."""

  path: pathlib.Path
  head: dict[str, Any]
  gb_s: float | None
  rows: list[Row] = dataclasses.field(default_factory=list)

  def add(self, row: Row) -> None:
    if row['part'] == 'device' and self.facts:
      return  # said again by a process that was started again
    self.rows.append(row)
    if 'name' in row:
      state = {True: 'ok', False: 'failed', None: 'not run'}[row['ok']]
      print(f'{state}: {row["name"]}', file=sys.stderr, flush=True)
    self.write({'complete': False})

  def write(self, more: dict[str, Any]) -> None:
    record = self.head | more | {'rows': self.rows}
    write_json(self.path, json.loads(run.dumps(record)))

  @property
  def facts(self) -> Row:
    """Of the device; empty before a process said them."""
    return summary.of(self.rows, part='device') or {}

  @property
  def device(self) -> Device | None:
    """Data-sheet figures, where they are known.

    Of a device that is not, a given bandwidth: products then count as free.
    """
    found = device_named(self.facts.get('device', ''))
    if self.gb_s is None:
      return found
    if found is None:
      return Device(gb_s=self.gb_s, tflop_s=math.inf)
    return dataclasses.replace(found, gb_s=self.gb_s)


def check(
  path: pathlib.Path,
  *,
  tiny: bool,
  minutes: float,
  programs: int,
  seed: int,
  gb_s: float | None,
) -> Record:
  """Runs all parts within the time; see the module."""
  total = 60 * minutes
  end = time.monotonic() + total - REPORT_S
  asked = {'tiny': tiny, 'seed': seed}
  settings = {'minutes': minutes, 'programs': programs}
  date = datetime.datetime.now(datetime.UTC).date().isoformat()
  path.parent.mkdir(parents=True, exist_ok=True)
  record = Record(path, {'date': date} | asked | settings, gb_s)
  record.write({'complete': False})  # before any work: it may not be possible

  def kernels(backends: list[str]) -> None:
    limit = min(KERNELS * total, end - time.monotonic())
    process.run(
      {'kind': 'kernels', 'backends': backends} | asked,
      record.add,
      seconds=limit,
    )

  first = ['xla', 'triton'] if tiny else ['xla']
  kernels(first)
  for backend, why in _refused(record.facts).items():
    if why is None and backend not in first:
      kernels([backend])
    elif backend not in first:
      name = f'kernels of {backend}'
      record.add({'part': 'backend', 'name': name} | not_run(why))

  for number, setting in enumerate(rounds.TINY if tiny else rounds.FULL):
    left = end - time.monotonic()
    begun = [x for x in record.rows if x.get('full') and x['ok'] is not None]
    unused = programs - len(begun)
    if left < total / 20 or unused < 1:
      why = f'{max(left, 0):.0f} s and {unused} programs of full size are left'
      record.add({'part': 'setting', 'name': setting.name} | not_run(why))
      continue
    process.run(
      {'kind': 'rounds', 'setting': number}
      | {'programs': unused, 'without': _wrong(record.rows)}
      | asked,
      record.add,
      seconds=left,
    )
  return record


def _refused(facts: Row) -> dict[str, str | None]:
  """Why no op can use a backend on this device; None where one can."""
  found: dict[str, str | None] = {}
  for reasons in facts.get('refusals', {}).values():
    for backend, why in reasons.items():
      if why is None or found.get(backend, '') is not None:
        found[backend] = why
  return found


def _wrong(rows: list[Row]) -> list[str]:
  """`op/backend` of kernels that failed: rounds do without them."""
  return sorted(
    {
      f'{row["op"]}/{row["backend"]}'
      for row in rows
      if row['part'] == 'kernel' and row['ok'] is False
      if row['backend'] != 'xla' and not row['interpreted']
    }
  )


def show() -> None:
  """What the flags ask for."""
  minutes, programs, tiny = _MINUTES.value, _PROGRAMS.value, _TINY.value
  if not minutes > 0:
    raise ValueError(f'minutes is {minutes}; give a number above 0.')
  record = check(
    pathlib.Path(_OUT.value),
    tiny=tiny,
    minutes=minutes,
    programs=min(programs, TINY_PROGRAMS) if tiny else programs,
    seed=secrets.randbelow(2**31) if _SEED.value is None else _SEED.value,
    gb_s=_GB_S.value,
  )
  device = record.device
  record.write(
    {
      'complete': True,
      'methods': summary.methods(record.rows, device),
      'kernels': summary.kernels(record.rows, device),
      'verdict': report.verdict(record.rows, device, tiny=tiny),
    }
  )
  print(report.text(record.rows, device, tiny=tiny))
  facts, versions = record.facts, record.facts.get('versions', {})
  print(
    f'\n{record.head["date"]}, {facts.get("device")}, jax '
    f'{versions.get("jax")}, seed {record.head["seed"]}; rows: {record.path}'
  )


main = run.command(show)


if __name__ == '__main__':
  app.run(main)
