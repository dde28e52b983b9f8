"""What is said of a number that a caller got wrong."""

from __future__ import annotations

import math
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
