"""What is said of numbers and settings that a caller got wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def whole(x: Any) -> bool:
  """Is it an integer? True and False are none."""
  return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def number(x: Any) -> bool:
  """Is it finite and real? True and False are none."""
  real = isinstance(x, (int, float, np.number)) and not isinstance(x, bool)
  return real and not isinstance(x, np.complexfloating) and math.isfinite(x)


def check_whole(least: int, **values: Any) -> None:
  """Raises ValueError for the first that is no whole number from `least` on."""
  for name, value in values.items():
    if not whole(value) or value < least:
      raise ValueError(
        f'{name} is {value!r}; give a whole number, {least} or more.'
      )


def changes(
  old: Any, new: Any, show: Callable[[Any, Any], str], name: str = ''
) -> list[str]:
  """What was and what is, of the innermost settings that differ.

  Args:
    old: a value, or dicts of them in dicts; `new` alike.
    show: (value, the other one) to how the value is said.
    name: of the value.
  """
  if isinstance(old, dict) and isinstance(new, dict):
    return [
      change
      for key in {**old, **new}
      for change in changes(old.get(key), new.get(key), show, key)
    ]
  if old == new:
    return []
  return [f'{name} was {show(old, new)} and is {show(new, old)}']
