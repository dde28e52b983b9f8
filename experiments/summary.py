"""From rows per prompt to one row per method, and a table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables import aligned
from specjax import metrics

PLAIN = 'ar'
# What differs between the prompts of one method; all else is carried over.
PER_PROMPT = (
  'prompt',
  'prompt_tokens',
  'finish_reason',
  'ids',
  'text',
  'walks',
  'equal',
  'right',
)


def summarise(
  rows: Sequence[dict[str, Any]], *, seed: int = 0
) -> list[dict[str, Any]]:
  """One row per method, in order of appearance.

  Speed-up is plain decoding's seconds per token over the method's, from the
  same run; seconds are those of the rounds, without the prompt's reading. Its
  interval is over prompts, as that of mean accepted is.
  """
  groups: dict[str, list[dict[str, Any]]] = {}
  for row in rows:
    groups.setdefault(row['label'], []).append(row)
  return [
    _summary(group, groups.get(PLAIN, []), seed) for group in groups.values()
  ]


def _summary(group, plain, seed: int) -> dict[str, Any]:
  column = lambda rows, name: [row[name] for row in rows]
  emitted = lambda rows: [row['tokens'] - 1 for row in rows]
  rounds, seconds = column(group, 'rounds'), column(group, 'decode_s')
  walks, depth = column(group, 'walks'), group[0]['max_depth']
  low, high = metrics.interval(emitted(group), rounds, seed=seed)
  total_s = sum(seconds)
  times = (
    *(seconds, emitted(group)),
    *(column(plain, 'decode_s'), emitted(plain)),
  )
  slowest, fastest = _over_prompts(group, plain, times, seed)
  return {
    **{k: v for k, v in group[0].items() if k not in PER_PROMPT},
    'prompts': len(group),
    'tokens': sum(column(group, 'tokens')),
    'rounds': sum(rounds),
    'mean_accepted': metrics.mean_accepted(emitted(group), rounds),
    'mean_accepted_low': low,
    'mean_accepted_high': high,
    'tau_paper': metrics.tau_paper(walks),
    'acceptance_by_depth': metrics.acceptance_by_depth(walks, depth),
    'prefill_s': sum(column(group, 'prefill_s')),
    'decode_s': total_s,
    'tokens_per_s': sum(emitted(group)) / total_s if total_s else None,
    'speed_up': metrics.speed_up(*times),
    'speed_up_low': slowest,
    'speed_up_high': fastest,
    'texts_equal': sum(column(group, 'equal')),
    **({'right': sum(column(group, 'right'))} if 'right' in group[0] else {}),
  }


def _over_prompts(group, plain, times, seed: int) -> tuple[float, float]:
  """Interval of the speed-up; none where prompts are not the same ones."""
  prompts = [[row['prompt'] for row in rows] for rows in (group, plain)]
  if prompts[0] != prompts[1]:
    return float('nan'), float('nan')
  return metrics.speed_up_interval(*times, seed=seed)


def as_table(summaries: Sequence[dict[str, Any]]) -> str:
  """Right-aligned columns; `nodes` are rows verified, the root included."""
  head = (
    'method nodes tokens rounds accepted 95% tau_paper tok/s speed-up equal'
  )
  lines = [head.split()]
  for s in summaries:
    lines.append(
      [
        s['label'],
        str(s['nodes']),
        str(s['tokens']),
        str(s['rounds']),
        f'{s["mean_accepted"]:.2f}',
        f'[{s["mean_accepted_low"]:.2f},{s["mean_accepted_high"]:.2f}]',
        f'{s["tau_paper"]:.2f}',
        f'{s["tokens_per_s"] or float("nan"):.1f}',
        f'{s["speed_up"]:.2f}x',
        f'{s["texts_equal"]}/{s["prompts"]}',
      ]
    )
  return aligned(with_right(lines, summaries))


def with_right(
  lines: Sequence[Sequence[str]], summaries: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
  """A table's lines, with the share of right answers behind where scored.

  Args:
    lines: the head, and one per summary.
    summaries: their rows; {} for a line that was not decoded.
  """
  if not any('right' in s for s in summaries):
    return list(map(list, lines))
  shares = [
    f'{s["right"]}/{s["prompts"]}' if 'right' in s else '-' for s in summaries
  ]
  cells = ['right', *shares]
  return [[*line, x] for line, x in zip(lines, cells, strict=True)]
