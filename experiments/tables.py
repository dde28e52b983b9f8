"""Text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]], *, left: int | None = 1) -> str:
  """Cells in columns two blanks apart, the head among the lines.

  Args:
    lines: all of one length.
    left: so many columns stand to the left, the others to the right; None
      is all.
  """
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

  def line(cells: Sequence[str]) -> str:
    return '  '.join(
      x.ljust(w) if left is None or i < left else x.rjust(w)
      for i, (x, w) in enumerate(zip(cells, widths, strict=True))
    )

  return '\n'.join(map(line, lines))
