"""From rows of `experiments.peers` to a row per generator, and a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from experiments import tables
from experiments.hf_generate import GREEDY
from experiments.summary import with_right
from specjax import metrics

Row = dict[str, Any]
HEAD = ('generator', 'tokens/s', f'x {GREEDY} [95%]', 'mean accepted', 'equal')


def summarise(rows: Sequence[Row]) -> list[Row]:
  """One row per generator; the ratio is of all seconds per token."""
  groups: dict[str, list[Row]] = {}
  for row in rows:
    groups.setdefault(row['label'], []).append(row)
  column = lambda group, name: [row[name] for row in group]
  times = lambda group: (column(group, 'seconds'), column(group, 'tokens'))
  found = []
  for label, group in groups.items():
    both = (*times(group), *times(groups[GREEDY]))
    s = {
      'label': label,
      'prompts': len(group),
      'tokens_per_s': statistics.median(column(group, 'tokens_per_s')),
      'ratio': metrics.speed_up(*both),
      'interval': metrics.speed_up_interval(*both),
      'equal': sum(column(group, 'equal')),
    }
    if 'rounds' in group[0]:
      emitted = [tokens - 1 for tokens in column(group, 'tokens')]
      s['accepted'] = metrics.mean_accepted(emitted, column(group, 'rounds'))
    if 'right' in group[0]:
      s['right'] = sum(column(group, 'right'))
    found.append(s)
  return found


def as_markdown(summaries: Sequence[Row]) -> str:
  """A line per generator; tokens/s are the median over prompts."""
  lines = [HEAD]
  for s in summaries:
    low, high = s['interval']
    own = s['label'] == GREEDY
    lines.append(
      (
        s['label'],
        f'{s["tokens_per_s"]:.1f}',
        '1' if own else f'{s["ratio"]:.2f} [{low:.2f}, {high:.2f}]',
        f'{s["accepted"]:.2f}' if 'accepted' in s else '-',
        f'{s["equal"]}/{s["prompts"]}',
      )
    )
  return tables.as_markdown(with_right(lines, summaries))
