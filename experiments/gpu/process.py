"""Processes whose rows are read as they come, and that may end as they like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from experiments import run as run_lib
from experiments.gpu.items import Row, not_run

PART = ('-m', 'experiments.gpu.part')
ITEM_S = 120.0  # OUR CHOICE: what says nothing for so long hangs
Command = tuple[str, ...]


def run(
  asked: dict[str, Any],
  add: Callable[[Row], None],
  *,
  seconds: float,
  restarts: int = 3,
  command: Command = PART,
) -> None:
  """All items of a part; one that ends its process fails, and others go on.

  Args:
    asked: see `experiments/gpu/part.py`.
    add: takes each row as it comes.
    seconds: of all processes together.
    restarts: after so many lost processes, what is left is not run.
    command: arguments of Python; `asked` is the last one.
  """
  end = time.monotonic() + seconds
  planned: dict[str, Row] = {}
  done: list[str] = []
  for _ in range(1 + restarts):
    begun, progress, ended = None, False, None
    left = end - time.monotonic()
    if left <= 0:
      break
    more = {'seconds': left, 'done': done}
    for row in rows(asked | more, seconds=left, command=command):
      if 'planned' in row:
        planned = planned or {x['name']: x for x in row['planned']}
      elif 'begun' in row:
        begun, progress = row['begun'], True
      elif 'ended' in row:
        ended = row['ended']
      else:
        begun = None
        done += [row['name']] if 'name' in row else []
        add(row)
    if ended is None:
      return
    if begun is not None:
      done.append(begun['name'])
      add(begun | {'ok': False, 'why': ended})
    if not progress:
      what = f'{asked["kind"]} {asked.get("setting", "")}'.strip()
      add({'part': 'process', 'name': what, 'ok': False, 'why': ended})
      break
  for name, row in planned.items():
    if name not in done:
      add(row | not_run('its process was lost, or no time is left'))


def rows(
  asked: dict[str, Any], *, seconds: float, command: Command = PART
) -> Iterator[Row]:
  """Rows of one process; `{'ended': why}` last where it did not end well."""
  end = time.monotonic() + seconds
  with tempfile.TemporaryFile('w+') as log:
    process = subprocess.Popen(
      [sys.executable, *command, json.dumps(asked)],
      stdout=subprocess.PIPE,
      stderr=log,
      text=True,
      cwd=run_lib.ROOT,
      env=os.environ | {'PYTHONUNBUFFERED': '1'},
    )
    late = threading.Event()

    def stop():
      late.set()
      process.kill()

    def watched() -> threading.Timer:
      timer = threading.Timer(
        max(min(ITEM_S, end - time.monotonic()), 0.0), stop
      )
      timer.start()
      return timer

    timer = watched()
    try:
      for line in process.stdout:
        timer.cancel()
        timer = watched()
        if line.startswith('{'):  # libraries may print other lines
          yield json.loads(line)
      code = process.wait()
    finally:
      timer.cancel()
      process.kill()
      process.wait()
    if late.is_set():
      yield {'ended': 'stopped: it took too long'}
    elif code:
      log.seek(0)
      last = [x for x in log.read().splitlines() if x.strip()][-1:]
      yield {'ended': f'the process ended with {code}: {"".join(last)[:300]}'}
