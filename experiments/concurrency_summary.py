"""From turns of serving to one row per concurrency and method."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.summary import PLAIN
from experiments.tables import aligned
from experiments.timing import ratio
from specjax import metrics

PER_TURN = (  # what differs between turns; all else is carried over
  *('turn', 'seconds', 'latency_s', 'first_s', 'tokens', 'walks', 'digests'),
  'ids',
)


def summarise(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """One row per concurrency and label, in order of appearance."""
  groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
  for row in turns:
    groups.setdefault((row['concurrency'], row['label']), []).append(row)
  return [
    _summary(group, groups[slots, PLAIN])
    for (slots, _), group in groups.items()
  ]


def _summary(group, plain) -> dict[str, Any]:
  """Rates are medians over turns, with the smallest and the largest."""
  rate = lambda row: sum(row['tokens']) / row['seconds']
  rates = list(map(rate, group))
  over, over_low, over_high = ratio(rates, list(map(rate, plain)))
  pooled = lambda name: np.concatenate([row[name] for row in group])
  quantile = lambda name, q: float(np.percentile(pooled(name), q))
  first = group[0]
  emitted = [tokens - 1 for tokens in first['tokens']]
  rounds = list(map(len, first['walks']))
  low, high = metrics.interval(emitted, rounds)
  return {
    **{k: x for k, x in first.items() if k not in PER_TURN},
    'turns': len(group),
    'requests': len(first['tokens']),
    'tokens': sum(first['tokens']),
    'tokens_per_s': statistics.median(rates),
    'low': min(rates),
    'high': max(rates),
    'over_plain': over,
    'over_plain_low': over_low,
    'over_plain_high': over_high,
    'latency_p50_s': quantile('latency_s', 50),
    'latency_p95_s': quantile('latency_s', 95),
    'first_p50_s': quantile('first_s', 50),
    'first_p95_s': quantile('first_s', 95),
    'mean_accepted': metrics.mean_accepted(emitted, rounds),
    'mean_accepted_low': low,
    'mean_accepted_high': high,
    'tau_paper': metrics.tau_paper(first['walks']),
    'equal': min(
      sum(map(operator.eq, row['digests'], plain[0]['digests']))
      for row in group
    ),
  }


def as_table(rows: Sequence[dict[str, Any]]) -> str:
  """A line per concurrency and method, then where each stops paying off."""
  head = (
    'requests method nodes tok/s x_ar p50_s p95_s first_p50_s first_p95_s '
    'accepted 95% equal'
  )
  lines = [head.split()]
  for row in rows:
    low, high = row['mean_accepted_low'], row['mean_accepted_high']
    lines.append(
      [
        str(row['concurrency']),
        row['label'],
        str(row['nodes']),
        f'{row["tokens_per_s"]:.1f}',
        f'{row["over_plain"]:.2f}',
        *(f'{row[f"latency_{q}_s"]:.3f}' for q in ('p50', 'p95')),
        *(f'{row[f"first_{q}_s"]:.3f}' for q in ('p50', 'p95')),
        f'{row["mean_accepted"]:.2f}',
        f'[{low:.2f},{high:.2f}]',
        f'{row["equal"]}/{row["requests"]}',
      ]
    )
  return '\n'.join([aligned(lines, left=2), '', *pays(rows)])


def pays(rows: Sequence[Mapping[str, Any]]) -> list[str]:
  """Above which concurrency each method stops paying off on this device."""
  by_label: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    if row['label'] != PLAIN:
      by_label.setdefault(row['label'], []).append(row)
  return [f'{label}: {_verdict(some)}' for label, some in by_label.items()]


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
  """Of one method: it pays up to the size before the first that does not."""
  rows = sorted(rows, key=lambda row: row['concurrency'])
  told = ', '.join(
    f'{row["over_plain"]:.2f} '
    f'[{row["over_plain_low"]:.2f}, {row["over_plain_high"]:.2f}] '
    f'at {row["concurrency"]}'
    for row in rows
  )
  told = f'(over plain decoding, with the range of turns: {told})'
  sizes = [row['concurrency'] for row in rows]
  lost = next((i for i, row in enumerate(rows) if row['over_plain'] <= 1), None)
  if lost is None:
    return f'pays off up to {sizes[-1]}, the largest measured {told}'
  if lost == 0:
    return f'does not pay off, not even at {sizes[0]} {told}'
  return f'stops paying off above {sizes[lost - 1]} {told}'
