"""Text tables: aligned for a terminal, CSV and LaTeX for files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TEX = str.maketrans(
  {c: f'\\{c}' for c in '&%$#_{}'}
  | {'~': '\\textasciitilde{}', '^': '\\textasciicircum{}'}
  | {'\\': '\\textbackslash{}', '<': '$<$', '>': '$>$'}
)


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


def as_markdown(lines: Sequence[Sequence[str]]) -> str:
  """A table of Markdown; the first line is its head."""
  head, *body = lines
  rows = [head, ['---'] * len(head), *body]
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def spanned(row: Mapping[str, Any], name: str) -> str:
  """A figure with its interval, which stands in the row as `_low`, `_high`."""
  low, high = row[f'{name}_low'], row[f'{name}_high']
  return f'{row[name]:.2f} [{low:.2f}, {high:.2f}]'


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
  """A line per row under the columns' names; the same rows, the same bytes.

  What a row lacks, None and nan are empty cells; floats have three decimals.
  """
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(columns)
  for row in rows:
    writer.writerow([cell(row.get(name)) for name in columns])
  return text.getvalue()


def as_tex(
  columns: Mapping[str, str],
  rows: Iterable[Mapping[str, Any]],
  *,
  caption: str,
  label: str,
) -> str:
  r"""A `longtable` with booktabs' rules; the same rows give the same bytes.

  Args:
    columns: heads by the rows' keys, in order.
    rows: as for `as_csv`.
    caption: plain text.
    label: what `\ref` takes.
  """
  head = ' & '.join(map(_escaped, columns.values())) + r' \\'
  return '\n'.join(
    [
      '% needs \\usepackage{booktabs,longtable}',
      f'\\begin{{longtable}}{{{"l" * len(columns)}}}',
      f'\\caption{{{_escaped(caption)}}}\\label{{{label}}}\\\\',
      *('\\toprule', head, '\\midrule', '\\endfirsthead'),
      *('\\toprule', head, '\\midrule', '\\endhead'),
      *('\\bottomrule', '\\endfoot'),
      *(
        ' & '.join(_escaped(cell(row.get(name), 2)) for name in columns)
        + r' \\'
        for row in rows
      ),
      '\\end{longtable}\n',
    ]
  )


def cell(value: Any, decimals: int = 3) -> str:
  """A value as files have it."""
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return ''
  return f'{value:.{decimals}f}' if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
  return text.translate(_TEX)
