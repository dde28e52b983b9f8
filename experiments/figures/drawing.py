"""From marks to files: one style, four formats, one command line."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

from experiments.figures import marks as marks_lib
from experiments.figures.marks import PUBLISHED, Mark
from experiments.tables import as_csv, as_tex
from specjax.weights.files import replacing

STYLE = pathlib.Path(__file__).parent / 'paper.mplstyle'
KINDS = ('pdf', 'png')
# A date, or a version, would make other bytes of the same marks.
UNDATED = {
  'pdf': {'CreationDate': None, 'Producer': None, 'Creator': None},
  'png': {'Software': None},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
  """A figure as its parts.

  Args:
    name: of its files.
    tables: the rows' `table`s that it is about; one of them has to be there.
    title: one line.
    marks: from all rows of a run to the marks, published ones included.
    draw: marks onto an empty matplotlib figure.
    size: inches, from the marks.
    about: what its caption says before who measured what.
    notes: what it says behind that, from the marks.
    columns: of the CSV file.
    tex: heads of the LaTeX table by column.
  """

  name: str
  tables: Sequence[str]
  title: str
  marks: Callable[[Sequence[Mark]], list[Mark]]
  draw: Callable[[Any, Sequence[Mark]], None]
  size: Callable[[Sequence[Mark]], tuple[float, float]]
  about: str
  columns: Sequence[str]
  tex: Mapping[str, str]
  notes: Callable[[Sequence[Mark]], str] = lambda marks: ''

  def caption(self, marks: Sequence[Mark]) -> str:
    parts = self.about, marks_lib.places(marks), self.notes(marks)
    return ' '.join(filter(None, parts))


def write(plot: Plot, marks: Sequence[Mark], folder: pathlib.Path) -> None:
  """PDF, PNG, CSV and TEX; equal marks give equal bytes.

  Raises:
    ValueError: matplotlib is not installed.
  """
  folder.mkdir(parents=True, exist_ok=True)
  caption = plot.caption(marks)
  texts = {
    'csv': as_csv(plot.columns, marks),
    'tex': as_tex(plot.tex, marks, caption=caption, label=f'tab:{plot.name}'),
  }
  for kind, text in texts.items():
    with replacing(folder / f'{plot.name}.{kind}') as part:
      part.write_text(text, encoding='utf-8', newline='\n')
  with styled():
    save(drawn(plot, marks), folder, plot.name)


def save(figure: Any, folder: pathlib.Path, name: str) -> None:
  """Every kind of picture; to be called in `styled`."""
  for kind in KINDS:
    with replacing(folder / f'{name}.{kind}') as part:
      figure.savefig(part, format=kind, metadata=UNDATED[kind])


def drawn(plot: Plot, marks: Sequence[Mark]) -> Any:
  """A matplotlib figure.

  Raises:
    ValueError: matplotlib is not installed.
  """
  with styled():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=plot.size(marks))
    FigureCanvasAgg(figure)
    figure.suptitle(plot.title, fontsize=9)
    plot.draw(figure, marks)
  return figure


@contextlib.contextmanager
def styled() -> Iterator[None]:
  """The style file on matplotlib's defaults, whatever this user has set."""
  try:
    import matplotlib.style
  except ImportError as e:
    raise ValueError(
      "figures need matplotlib: pip install 'specjax[notebooks]'."
    ) from e
  # absl lets all loggers speak, and this one tells every glyph.
  logging.getLogger('fontTools').setLevel(logging.WARNING)
  with matplotlib.rc_context():
    matplotlib.rcdefaults()
    matplotlib.style.use(STYLE)
    yield


def look(mark: Mark, shape: str = 'o') -> dict[str, Any]:
  """Keywords of `Axes.plot` for one mark or a line of its kind."""
  colour = marks_lib.colour(mark['method'])
  hollow = mark['source'] == PUBLISHED
  return {
    'color': colour,
    'marker': shape,
    'markeredgecolor': colour,
    'markerfacecolor': 'none' if hollow else colour,
    'linestyle': '--' if hollow else '-',
  }


def whiskers(axes: Any, x: float, mark: Mark, low: str, high: str) -> None:
  """The interval of a measured mark, where there is one."""
  ends = mark.get(low), mark.get(high)
  if None not in ends:
    axes.vlines(x, *ends, color=marks_lib.colour(mark['method']), linewidth=0.8)


def legend(figure: Any, marks: Sequence[Mark], shapes: Mapping[str, str]):
  """Colours are methods, shapes are targets, hollow is published."""
  from matplotlib.lines import Line2D

  dot = lambda label, **kw: Line2D([], [], linestyle='none', label=label, **kw)
  methods = sorted({m['method'] for m in marks}, key=_order)
  handles = [dot(m, marker='.', color=marks_lib.colour(m)) for m in methods]
  for target, shape in shapes.items():
    handles.append(dot(target, marker=shape, color='0.4'))
  for source, fill in ((PUBLISHED, 'none'), (marks_lib.MEASURED, '0.4')):
    if any(m['source'] == source for m in marks):
      style = dict(markeredgecolor='0.4', markerfacecolor=fill)
      text = source if source == PUBLISHED else 'measured here'
      handles.append(dot(text, marker='o', **style))
  figure.legend(handles=handles, loc='outside right upper')


def labels(figure: Any, all_axes: Sequence[Any]) -> None:
  """One legend of what the panels' artists are labelled, each label once."""
  found = {}
  for axes in all_axes:
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
      found.setdefault(label, handle)
  figure.legend(found.values(), found.keys(), loc='outside right upper')


def grid(figure: Any, count: int, **kwargs: Any) -> list[Any]:
  """So many axes, at most four in a row; what is left over stays empty."""
  across = min(count, 4)
  axes = figure.subplots(-(-count // across), across, squeeze=False, **kwargs)
  for spare in axes.flat[count:]:
    spare.set_axis_off()
  return list(axes.flat[:count])


def sized(
  count: int, *, legend: float = 1.6, panel: float = 2.3
) -> tuple[float, float]:
  """Inches of a `grid` of so wide panels with a legend beside it."""
  across = min(count, 4)
  return panel * across + legend, (panel + 0.1) * -(-count // across) + 0.3


def powers_of_two(axes: Any, values: Sequence[float]) -> None:
  """A log-2 x axis with a tick per value, but none upon another's."""
  ticks: list[float] = []
  for value in sorted(set(values)):
    if not ticks or value > 1.2 * ticks[-1]:
      ticks.append(value)
  axes.set_xscale('log', base=2)
  axes.set_xticks(ticks, [f'{x:g}' for x in ticks])
  axes.minorticks_off()


def log_y(axes: Any) -> None:
  """A log axis with 1, 2 and 5 of every decade in plain figures."""
  from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

  axes.set_yscale('log')
  axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
  axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f'{y:g}'))
  axes.yaxis.set_minor_locator(NullLocator())


def _order(method: str) -> tuple[int, str]:
  known = list(marks_lib.COLOURS)
  at = known.index(method) if method in known else len(known)
  return at, method


def define_flags() -> None:
  flags.DEFINE_string('out', None, 'Folder; by default RUN_DIR/figures.')


def command(plot: Plot) -> Callable[[Sequence[str]], None]:
  """`main` of a figure's script: RUN_DIR in, four files out."""

  def main(argv: Sequence[str]) -> None:
    if len(argv) != 2:
      raise app.UsageError('give one RUN_DIR.')
    try:
      rows = marks_lib.read_rows(argv[1])
      have = {row['table'] for row in rows}
      if not have & set(plot.tables):
        raise ValueError(
          f'{argv[1]} holds no rows of {" or ".join(plot.tables)}; it has '
          f'{", ".join(sorted(have))}.'
        )
      out = pathlib.Path(flags.FLAGS.out or pathlib.Path(argv[1]) / 'figures')
      marks = plot.marks(rows)
      write(plot, marks, out)
    except ValueError as error:
      sys.exit(f'error: {error}')
    print(f'{plot.caption(marks)}\n\n{out / plot.name}: pdf, png, csv, tex')

  return main
