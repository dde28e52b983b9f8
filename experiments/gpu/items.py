"""What one process of the device check does, item by item.

A kernel that was never run on a device may end the process that runs it, or
never return. So items run in processes of their own, one after the other, and
each says what it begins and what came of it on a line of JSON.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import jax.numpy as jnp

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
  """`run` gives facts beside those that are known before.

  `full`: a program that holds the layers of the target or of a drafter.
  """

  name: str
  known: Row
  run: Callable[[], Row]
  full: bool = False

  @property
  def row(self) -> Row:
    return {**self.known, 'name': self.name, 'full': self.full}


def rows_of(
  items: Iterable[Item],
  *,
  seconds: float,
  programs: int | None = None,
  done: Collection[str] = (),
) -> Iterator[Row]:
  """What is planned; then of each item that it is begun, and its row.

  The first two are `{'planned': [...]}` and `{'begun': {...}}`, of rows without
  an outcome. An outcome is `ok`: true, false, or None where it did not run, and
  `why`. An item that fails says why and the others go on, unless the device is
  lost, which ends the process: the caller starts another one.

  Args:
    items: in order of importance.
    seconds: none begins that would end later, were it as long as the longest.
    programs: full-size ones at most, behind which nothing runs; None: any.
    done: names to leave out.

  Raises:
    RuntimeError: after an item that failed, nothing runs on the device.
  """
  end, longest = time.monotonic() + seconds, 0.0
  items = [item for item in items if item.name not in done]
  yield {'planned': [item.row for item in items]}
  for item in items:
    row = item.row
    left = end - time.monotonic()
    if programs is not None and programs < 1:
      yield row | not_run('the allowed programs of full size are used up')
      continue
    if left < 1.2 * longest or left < 0:
      yield row | not_run(f'{max(left, 0):.0f} s are left')
      continue
    yield {'begun': row}
    begun, failed = time.monotonic(), False
    if programs is not None:
      programs -= item.full
    try:
      row |= {'ok': True} | item.run()
    except Exception as error:  # whatever a compiler or a device raises
      failed = True
      row |= {'ok': False, 'why': f'{type(error).__name__}: {error}'[:300]}
    row['seconds'] = time.monotonic() - begun
    longest = max(longest, row['seconds'])
    yield row
    if failed:
      _still_there()


def not_run(why: str) -> Row:
  """The outcome of what did not run."""
  return {'ok': None, 'why': f'not run: {why}'}


def _still_there() -> None:
  """Some failures leave a device on which everything fails."""
  try:
    jnp.zeros(8).block_until_ready()
  except Exception as error:
    raise RuntimeError('nothing runs on the device any more') from error
