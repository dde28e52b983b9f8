"""The published tables as measurements: what is measured, in which cells.

Each is a frozen object that gin fills, with `measure(folder)` which gives rows.
A cell is a run folder of its own, in which the script that makes it goes on
where it was interrupted. Rows bear the name of a target and not its path.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import gin

from experiments.breakdown import breakdown
from experiments.concurrency import concurrency
from experiments.evaluate import evaluate
from experiments.lineup import Variant
from experiments.summary import PLAIN, with_right
from specjax import api
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec

Rows = list[dict[str, Any]]
HIDDEN = ('drafters', 'prompt_set')  # of rows: paths of this machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """A target with its drafters.

  In gin, several stand in scopes of their own:

    paper_tables.SpeedUp.targets = [@small/paper_tables.Target(), ...]
    small/paper_tables.Target.name = 'Qwen3-4B'

  Args:
    name: as figures call it, and part of folders' names.
    path: folder, hub id or 'default'.
    drafters: folder or hub id by method; the packaged one if absent.
    scorer: of `taps`.
    ranks: of a draft vocabulary: a file of `specjax.vocab.ranks`, or ids.
    indices: of EvoSpec's buffer; None goes without.
    budgets: instead of the table's.

  A method may be there with several drafters: 'dflash:Draft-OPD' is dflash, in
  budgets and in drafters, and called Draft-OPD in figures.
  """

  name: str = 'default'
  path: str = 'default'
  drafters: Mapping[str, str] = dataclasses.field(default_factory=dict)
  scorer: str | None = None
  ranks: Any = None
  indices: str | None = None
  budgets: Mapping[str, Sequence[int]] | None = None

  def __post_init__(self):
    if pathlib.Path(self.name).name != self.name or self.name in ('', '..'):
      raise ValueError(
        f'a target is called {self.name!r}; give a name that a folder may have.'
      )

  def variants(self, budgets: Mapping[str, Sequence[int]]) -> list[Variant]:
    """A variant per method and budget, which is rows verified."""
    return [
      Variant(
        label=f'{name}-{nodes}',
        method=functools.partial(_builder(method), nodes=nodes),
        drafter=self.drafters.get(name),
        scorer=self.scorer if method == 'taps' else None,
      )
      for name, sizes in (self.budgets or budgets).items()
      for method in [name.partition(':')[0]]
      for nodes in sizes
    ]


class Table(Protocol):
  """A published table, at whatever size."""

  targets: Sequence[Target]

  def measure(self, folder: pathlib.Path) -> Iterator[Rows]:
    """Rows of one cell after the other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeedUp:
  """Targets x methods x budgets x temperatures, and the time of a round.

  Args:
    targets: what is decoded.
    budgets: rows verified, root included, by method.
    temperatures: 0 is greedy.
    split: also time the parts of a greedy round.
  """

  targets: Sequence[Target] = (Target(),)
  budgets: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  temperatures: Sequence[float] = (0.0, 1.0)
  split: bool = True

  def measure(self, folder: pathlib.Path) -> Iterator[Rows]:
    for target in self.targets:
      given = dict(target=target.path, methods=target.variants(self.budgets))
      for temperature in self.temperatures:
        part = folder / f'{target.name}-T{temperature:g}'
        yield named(
          'speedup',
          target,
          bound(evaluate)(run_dir=part, temperature=temperature, **given),
        )
      if self.split:
        part = folder / f'{target.name}-split'
        rows = bound(breakdown)(run_dir=part, temperature=0.0, **given)
        yield named('split', target, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
  """Targets x methods x concurrent requests, through the engine.

  Args:
    targets: what is served.
    budgets: as for `SpeedUp`.
    concurrencies: requests decoded together.
  """

  targets: Sequence[Target] = (Target(),)
  budgets: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  concurrencies: Sequence[int] = (1, 4, 8, 16, 32)

  def measure(self, folder: pathlib.Path) -> Iterator[Rows]:
    for target in self.targets:
      rows = bound(concurrency)(
        run_dir=folder / target.name,
        target=target.path,
        methods=target.variants(self.budgets),
        concurrencies=self.concurrencies,
      )
      yield named('throughput', target, rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocabulary:
  """Targets x drafters x static lists x buffers of rare tokens.

  Args:
    targets: with `ranks`.
    budgets: as for `SpeedUp`; each method is measured with its whole
      vocabulary, too.
    lists: tokens of the static list.
    buffers: slots for rare tokens; 0 is the list alone.
  """

  targets: Sequence[Target] = (Target(),)
  budgets: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  lists: Sequence[int] = ()
  buffers: Sequence[int] = (0,)

  def measure(self, folder: pathlib.Path) -> Iterator[Rows]:
    for target in self.targets:
      cut = {
        f'{whole.label}+{size}+{buffer}': (whole, size, buffer)
        for whole in target.variants(self.budgets)
        for size in self.lists
        for buffer in self.buffers
      }
      limited = [
        dataclasses.replace(
          whole, label=label, vocab=_vocabulary(target, size, buffer)
        )
        for label, (whole, size, buffer) in cut.items()
      ]
      rows = bound(evaluate)(
        run_dir=folder / target.name,
        target=target.path,
        methods=[*target.variants(self.budgets), *limited],
      )
      for row in rows:
        _, size, buffer = cut.get(row['label'], (None, None, None))
        row |= {'list': size, 'buffer': buffer or None}
      yield named('vocabulary', target, rows)


def _vocabulary(target: Target, size: int, buffer: int) -> Any:
  if target.ranks is None:
    raise ValueError(
      f'target {target.name!r} has no ranks; `python -m '
      'experiments.rank_tokens` makes them.'
    )
  if not buffer:
    return FrSpec(ranks=target.ranks, size=size)
  return EvoSpec(
    ranks=target.ranks, size=size, buffer=buffer, indices=target.indices
  )


def _builder(name: str) -> Callable[..., Any]:
  """A method's build function with what gin binds to it."""
  build = api.build_of(name)
  try:
    return gin.get_configurable(build)
  except ValueError:  # no configuration file names it
    return build


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
  """A script's function with what gin binds to it, such as its prompts."""
  return gin.get_configurable(function)


def named(table: str, target: Target, rows: Sequence[Mapping]) -> Rows:
  """Rows as figures take them."""
  called = lambda label: label.partition(':')[2].rpartition('-')[0] or None
  return [
    {k: v for k, v in row.items() if k not in HIDDEN}
    | {'table': table, 'target': target.name, 'called': called(row['label'])}
    for row in rows
  ]


def facts(table: Table) -> dict[str, Any]:
  """A table's settings for the record of a run."""
  return {'table': type(table).__name__, **dataclasses.asdict(table)}


def overview(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """Lines of a terminal's table: what was gained, where and how surely."""
  head = 'target what method T accepted tok/s x_ar 95%/range equal'
  lines = [head.split()]
  rows = [row for row in rows if row['table'] != 'split']
  for row in rows:
    served = row['table'] == 'throughput'
    over = 'over_plain' if served else 'speed_up'
    low, high = (row[f'{over}_{end}'] for end in ('low', 'high'))
    same = ('equal', 'requests') if served else ('texts_equal', 'prompts')
    what = f'{row["concurrency"]} at a time' if served else 'one at a time'
    lines.append(
      [
        row['target'],
        what,
        row['label'],
        f'{row["temperature"]:g}',
        f'{row["mean_accepted"]:.2f}',
        f'{row["tokens_per_s"]:.1f}',
        f'{row[over]:.2f}',
        '' if row['label'] == PLAIN else f'[{low:.2f},{high:.2f}]',
        '/'.join(str(row[name]) for name in same),
      ]
    )
  return with_right(lines, rows)
