"""Tokens per second of a server against the requests it decodes together.

  python -m experiments.figures.throughput RUN_DIR

RUN_DIR is that of `python -m experiments.paper` with math500_throughput.gin.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from absl import app

from experiments.concurrency_summary import pays
from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import (
  DEVICES,
  MEASURED,
  NAMES,
  PUBLISHED,
  Mark,
)
from experiments.summary import PLAIN

COPIED = (  # from measured rows as they are
  *('concurrency', 'nodes', 'tokens_per_s', 'low', 'high', 'over_plain'),
  *('over_plain_low', 'over_plain_high'),
  *('latency_p50_s', 'latency_p95_s', 'first_p50_s', 'first_p95_s'),
  *('requests', 'equal', 'thinking', 'dtype'),
)


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """Published rows, then ours."""
  found = [_published(*pair) for pair in marks.published('math500_throughput')]
  for row, who in marks.measured(rows, 'throughput'):
    found.append(
      {
        **who,
        **{name: row[name] for name in COPIED},
        'engine': 'specjax',
        'accepted': row['mean_accepted'],
        'accepted_low': row['mean_accepted_low'],
        'accepted_high': row['mean_accepted_high'],
      }
    )
  return found


def _published(row: dict[str, str], found: Any) -> Mark:
  return {
    'source': PUBLISHED,
    'study': marks.study_of('math500_throughput', row),
    'method': row['method'],
    'target': row['target'],
    'device': DEVICES[found.device],
    'engine': row['engine'],
    'thinking': row['thinking'] == 'yes',
    'concurrency': int(row['concurrency']),
    'nodes': found.nodes,
    'tokens_per_s': float(row['throughput_tok_s']),
    'accepted': float(row['acceptance_length']),
  }


def _panels(found: Sequence[Mark]) -> list[str]:
  return list(dict.fromkeys(m['target'] for m in found))


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """A panel per target: tokens of different ones cost different work."""
  panels = _panels(found)
  for axes, target in zip(
    drawing.grid(figure, len(panels)), panels, strict=True
  ):
    some = [m for m in found if m['target'] == target]
    key = lambda m: (m['source'], m['method'], m['nodes'], m['device'])
    for _, group in itertools.groupby(sorted(some, key=key), key):
      line = sorted(group, key=lambda m: m['concurrency'])
      x = [m['concurrency'] for m in line]
      axes.plot(x, [m['tokens_per_s'] for m in line], **drawing.look(line[0]))
      for mark in line:
        drawing.whiskers(axes, mark['concurrency'], mark, 'low', 'high')
    drawing.powers_of_two(axes, [m['concurrency'] for m in some])
    devices = ' / '.join(dict.fromkeys(m['device'] for m in some))
    axes.set(
      title=f'{target}\n{devices}',
      xlabel='concurrent requests',
      ylabel='output tokens per second',
    )
    drawing.log_y(axes)
  drawing.legend(figure, found, {})


def verdicts(found: Sequence[Mark]) -> str:
  """Above which concurrency methods stop paying off, by target and device."""
  groups: dict[tuple[str, str], list[Mark]] = {}
  for mark in found:
    if mark['source'] == MEASURED:
      name = f'{mark["method"]}, rows: {mark["nodes"]}'
      label = PLAIN if mark['method'] == NAMES[PLAIN] else name
      where = mark['target'], mark['device']
      groups.setdefault(where, []).append({**mark, 'label': label})
  return ' '.join(
    f'{target} on {device}: {"; ".join(pays(rows))}.'
    for (target, device), rows in groups.items()
  )


FIGURE = Plot(
  name='throughput',
  tables=('throughput',),
  title='Throughput against concurrency',
  marks=marks_of,
  draw=draw,
  size=lambda found: drawing.sized(len(_panels(found))),
  about='Output tokens per second against the number of requests decoded '
  'together. Whiskers: smallest and largest turn. The published rows are of '
  'MATH-500 with thinking, on one H200; scales differ between panels.',
  notes=verdicts,
  columns=(
    *marks.WHO,
    *('engine', 'thinking', 'concurrency', 'nodes', 'tokens_per_s', 'low'),
    *('high', 'over_plain', 'over_plain_low', 'over_plain_high'),
    *('latency_p50_s', 'latency_p95_s', 'first_p50_s', 'first_p95_s'),
    *('accepted', 'accepted_low', 'accepted_high', 'requests'),
    *('equal', 'dtype'),
  ),
  tex={
    **marks.WHO_TEX,
    'concurrency': 'requests',
    'tokens_per_s': 'tokens/s',
    'over_plain': 'x plain',
    'latency_p50_s': 'p50, s',
    'latency_p95_s': 'p95, s',
    'first_p50_s': 'first, s',
    'accepted': 'accepted',
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
