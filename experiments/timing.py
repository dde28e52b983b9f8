"""Times things that take turns, so that a slow minute hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(
  jobs: Mapping[str, Callable[[], Any]], *, repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
  """Seconds of each job, run in turn `repeats` times after `warm_up` rounds.

  A job blocks until its work is done. The order turns by one each time, since
  what runs after a big job finds other things in the caches.
  """
  names = list(jobs)
  seconds: dict[str, list[float]] = {name: [] for name in names}
  for turn in range(-warm_up, repeats):
    first = turn % len(names)
    for name in names[first:] + names[:first]:
      begun = time.perf_counter()
      jobs[name]()
      if turn >= 0:
        seconds[name].append(time.perf_counter() - begun)
  return seconds


def ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
  """Median of a / b turn by turn, with the smallest and the largest."""
  ratios = [x / y for x, y in zip(a, b, strict=True)]
  return statistics.median(ratios), min(ratios), max(ratios)
