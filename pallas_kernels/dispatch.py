"""Which implementation of an op serves a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def choose(
  op: str, backends: Mapping[str, Callable[..., Any]], backend: str | None
) -> Callable[..., Any]:
  """The implementation named by `backend`; None leaves the choice to the op.

  Raises:
    ValueError: no such backend; names those there are.
  """
  if backend is None:
    return backends['xla']
  if backend not in backends:
    raise ValueError(
      f'{op}: backend is {backend!r}; choose from {sorted(backends)}.'
    )
  return backends[backend]
