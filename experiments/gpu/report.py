"""What the device check says: the verdict, what was not run, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.gpu import summary
from experiments.gpu.items import Row
from experiments.roofline_model import Device
from experiments.summary import PLAIN
from experiments.tables import aligned

# Goals: of the data sheet's bandwidth, of one row's pass, and of a round.
BANDWIDTH, VERIFY, OUTSIDE = 0.85, 1.15, 0.03

_ROUNDS = {  # heads by a line's keys, and digits
  'setting': ('setting', None),
  'method': ('method', None),
  'nodes': ('rows', 0),
  'round_ms': ('ms', 3),
  'draft_ms': ('draft', 3),
  'tree_ms': ('tree', 3),
  'verify_ms': ('verify', 3),
  'commit_ms': ('commit', 3),
  'rest_ms': ('rest', 3),
  'of_plain': ('x ar', 2),
  'tau': ('tau', 2),
  'speed_up': ('speed-up', 2),
  'predicted_ms': ('predicted', 3),
}
_KERNELS = {
  'op': ('kernel', None),
  'backend': ('backend', None),
  'case': ('case', None),
  'error': ('error', 5),
  'ms': ('ms', 4),
  'xla_ms': ('xla', 4),
  'least_ms': ('least', 4),
}


def text(rows: Sequence[Row], device: Device | None, *, tiny: bool) -> str:
  """All of it, the short table last."""
  failed = [f'failed: {name}: {why}' for name, why in summary.failures(rows)]
  missing = [
    f'{why} - {", ".join(names)}'
    for why, names in summary.not_run(rows).items()
  ]
  lines = summary.methods(rows, device)
  return '\n\n'.join(
    part
    for part in (
      '\n'.join(failed),
      '\n'.join(missing),
      verdict(rows, device, tiny=tiny),
      _table(_KERNELS, summary.kernels(rows, device), left=3),
      _table(_ROUNDS, lines, left=2),
    )
    if part
  )


def verdict(rows: Sequence[Row], device: Device | None, *, tiny: bool) -> str:
  """One paragraph against the goals."""
  lines = summary.methods(rows, device)
  said = [_kernels(rows), _bandwidth(lines), _verify(lines), _outside(lines)]
  if tiny:
    said.append(
      'These are tiny shapes: they show that the script runs, and nothing of a '
      'device.'
    )
  return f'Verdict: {" ".join(said)}'


def _kernels(rows: Sequence[Row]) -> str:
  ok = [x['ok'] for x in rows if x['part'] == 'kernel' and not x['timed']]
  begun = [x for x in ok if x is not None]
  return f'{sum(begun)} of {len(begun)} checked calls of kernels are right.'


def _bandwidth(lines: Sequence[Row]) -> str:
  line = summary.of(lines, method=PLAIN)
  if line is None or line.get('gb_s') is None:
    return 'What a plain step makes of the memory bandwidth is not measured.'
  start = (
    f'A plain step of {line["setting"]} takes {line["round_ms"]:.3f} ms, '
    f'{line["gb_s"]:.0f} GB/s'
  )
  if line['bandwidth'] is None:
    return f"{start}; this device's data sheet is not known (--gb_s)."
  share = line['bandwidth']
  return (
    f"{start} or {share:.0%} of the data sheet's: "
    f'{_met(share >= BANDWIDTH)} the goal of {BANDWIDTH:.0%}.'
  )


def _verify(lines: Sequence[Row]) -> str:
  """The widest tree of the first setting that has one and a row."""
  for one in lines:
    if one['method'] != PLAIN or one.get('verify_ms') is None:
      continue
    checked = [
      x
      for x in lines
      if x['setting'] == one['setting'] and x.get('verify_ms') is not None
    ]
    wide = max(checked, key=lambda x: x['nodes'])
    if wide['nodes'] > 1:
      factor = wide['verify_ms'] / one['verify_ms']
      return (
        f'Verifying {wide["nodes"]} rows takes {factor:.2f} times one row '
        f'({one["setting"]}): {_met(factor <= VERIFY)} the goal of {VERIFY}.'
      )
  return 'Verifying a tree and one row are not both measured.'


def _outside(lines: Sequence[Row]) -> str:
  drafting = [
    x for x in lines if x['method'] != PLAIN and x.get('outside') is not None
  ]
  if not drafting:
    return 'What a round spends outside draft and verify is not measured.'
  worst = max(drafting, key=lambda x: x['outside'])
  return (
    f'Outside draft and verify a round spends at most {worst["outside"]:.1%} '
    f'({worst["method"]}, {worst["setting"]}): '
    f'{_met(worst["outside"] <= OUTSIDE)} the goal of {OUTSIDE:.0%}.'
  )


def _met(goal: bool) -> str:
  return 'reaches' if goal else 'misses'


def _table(
  columns: Mapping[str, tuple[str, int | None]],
  lines: Sequence[Row],
  *,
  left: int,
) -> str:
  if not lines:
    return ''
  cells = [
    [_cell(line.get(name), digits) for name, (_, digits) in columns.items()]
    for line in lines
  ]
  return aligned([[head for head, _ in columns.values()], *cells], left=left)


def _cell(value: Any, digits: int | None) -> str:
  if value is None:
    return '-'
  return str(value) if digits is None else f'{value:.{digits}f}'
