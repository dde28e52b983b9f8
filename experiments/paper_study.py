"""One model studied whole: prompt sets x sampling laws x methods."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.evaluate import evaluate
from experiments.lineup import Variant
from experiments.paper_tables import Rows, Target, bound, named
from experiments.tables import spanned
from specjax.checks import check_whole, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
  """How texts are sampled, and whether drafts see the sampling's noise."""

  temperature: float = 0.0
  coupled: bool = True

  def __post_init__(self):
    if not number(self.temperature) or self.temperature < 0:
      raise ValueError(
        f'temperature is {self.temperature!r}; give a number, 0 or above.'
      )

  @property
  def name(self) -> str:
    kind = ('', '-coupled')[self.coupled and self.temperature > 0]
    return f'T{self.temperature:g}{kind}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """What is accepted, over many prompts at once; how fast, one at a time.

  Acceptance does not depend on the batch, whose texts are those of each prompt
  alone, so it is measured on more prompts than there is time for otherwise.

  Args:
    targets: what is decoded.
    budgets: rows verified, root included, by method.
    prompts: name or path of a prompt set, by what it is called.
    laws: of sampling.
    many: prompts whose acceptance is measured, `batch` of them at once.
    batch: see `many`.
    many_tokens: new ones of each.
    few: prompts that are timed, batch 1, plain decoding interleaved.
    few_tokens: new ones of each.
    repeats: timed decodings of each.
  """

  targets: Sequence[Target] = (Target(),)
  budgets: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  laws: Sequence[Law] = (Law(), Law(temperature=1.0))
  many: int = 50
  batch: int = 50
  many_tokens: int = 128
  few: int = 10
  few_tokens: int = 64
  repeats: int = 1

  def __post_init__(self):
    sizes = ('many', 'batch', 'many_tokens', 'few', 'few_tokens', 'repeats')
    check_whole(1, **{name: getattr(self, name) for name in sizes})
    if not self.prompts:
      raise ValueError('the study has no prompts; name a set with its path.')

  def measure(self, folder: pathlib.Path) -> Iterator[Rows]:
    """Rows of one cell after the other, those of a law side by side."""
    for target in self.targets:
      for called, prompts in self.prompts.items():
        for law in self.laws:
          given = {
            'target': target.path,
            'methods': _variants(target, self.budgets, law.coupled),
            'prompts': prompts,
            'temperature': law.temperature,
          }
          cell = folder / f'{target.name}-{called}-{law.name}'
          yield self._cell(target, called, law, cell, given)

  def _cell(self, target, called, law, cell: pathlib.Path, given) -> Rows:
    cell.mkdir(parents=True, exist_ok=True)
    accepted = bound(evaluate)(
      run_dir=cell / 'accepted',
      limit=self.many,
      batch=self.batch,
      max_new_tokens=self.many_tokens,
      repeats=1,
      **given,
    )
    times = bound(evaluate)(
      run_dir=cell / 'speed',
      limit=self.few,
      batch=1,
      max_new_tokens=self.few_tokens,
      repeats=self.repeats,
      **given,
    )
    more = {'prompts_called': called, 'coupled': law.coupled}
    rows = []
    for table, found in (('accepted', accepted), ('speedup', times)):
      rows += [row | more for row in named(table, target, found)]
    return rows


def _variants(
  target: Target, budgets: Mapping[str, Sequence[int]], coupled: bool
) -> list[Variant]:
  """A target's methods, those that can be coupled as the law says."""
  variants = []
  for v in target.variants(budgets):
    build = v.method
    if 'coupled' in inspect.signature(build).parameters:
      build = functools.partial(build, coupled=coupled)
    variants.append(dataclasses.replace(v, method=build))
  return variants


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """Lines of a Markdown table: a method under a law on a prompt set.

  Rows of other tables are passed over.
  """
  lines = [
    [
      'prompts',
      'T',
      'method',
      'nodes',
      'mean accepted [95%]',
      'tau_paper',
      'tok/s',
      'x ar [95%]',
      'texts equal',
    ]
  ]
  key = lambda row: (
    row['target'],
    row['prompts_called'],
    row['temperature'],
    row['coupled'],
    row['label'],
  )
  rows = [row for row in rows if 'prompts_called' in row]
  timed = {key(row): row for row in rows if row['table'] == 'speedup'}
  for row in rows:
    if row['table'] != 'accepted':
      continue
    fast, same = timed[key(row)], (row, timed[key(row)])
    law = f'{row["temperature"]:g}'
    if row['temperature'] > 0:
      law += ' coupled' if row['coupled'] else ' uncoupled'
    lines.append(
      [
        row['prompts_called'],
        law,
        row['method'],
        str(row['nodes']),
        spanned(row, 'mean_accepted'),
        f'{row["tau_paper"]:.2f}',
        f'{fast["tokens_per_s"]:.1f}',
        spanned(fast, 'speed_up'),
        '{}/{}'.format(
          sum(r['texts_equal'] for r in same), sum(r['prompts'] for r in same)
        ),
      ]
    )
  return lines
