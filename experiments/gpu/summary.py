"""Rows of the device check put together: a line per method, a line per kernel.

A method's line has its round in milliseconds and its split. `draft` is drafter
and tree less the tree, `rest` what the parts leave of the round. `speed_up` is
the published mean accepted x the plain step / the round, both timed in the same
turns: what this code would reach with a drafter as good as the published one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.gpu.items import Row
from experiments.roofline_model import Device, Setting, target_pass
from experiments.roofline_presets import TARGETS, drafter_of
from experiments.roofline_published import METHOD_NAMES, TARGET_NAMES, read
from experiments.roofline_rounds import predict
from experiments.summary import PLAIN

PARTS = ('draft', 'tree', 'verify', 'commit')


def published(target: str, method: str, nodes: int) -> float | None:
  """Mean accepted on MATH-500 at temperature 0, by the study of TreeFlash.

  Of the two budgets there the one nearer to `nodes`.
  """
  found = {
    int(row['draft_budget']): float(row['acceptance_length'])
    for table, row in read()
    if table == 'math500_speedup'
    and TARGET_NAMES[row['target']] == target
    and METHOD_NAMES[row['method']] == method
    and (row['hardware'], row['temperature']) == ('', '0')
  }
  budget = min(found, key=lambda x: abs(x - nodes), default=None)
  return found.get(budget)


def methods(rows: Sequence[Row], device: Device | None) -> list[Row]:
  """A line per setting and method whose round was begun."""
  rows = [row for row in rows if row['part'] == 'round']
  return [
    _method(rows, row, device)
    for row in rows
    if row['kind'] == 'round' and row['ok'] is not None
  ]


def _method(rows: Sequence[Row], round: Row, device: Device | None) -> Row:
  (label,), setting = round['labels'], round['setting']
  line = {
    'setting': setting,
    'method': label,
    'nodes': round['nodes'],
    'why': round.get('why'),
  }
  if not round['ok']:
    return line
  ms = {
    row['kind']: row['ms']
    for row in rows
    if row['ok'] and row['setting'] == setting and label in row['labels']
  }
  line |= {'round_ms': ms['round'], 'of_plain': round['of_plain']}
  line |= {f'{name}_ms': ms.get(name) for name in PARTS}
  if label == PLAIN:
    line |= {f'{name}_ms': 0.0 for name in ('draft', 'tree', 'commit')}
  elif ms.keys() >= {'drafted', 'tree'}:
    line['draft_ms'] = max(ms['drafted'] - ms['tree'], 0.0)
  parts = [line[f'{name}_ms'] for name in PARTS]
  if None not in parts:
    line['rest_ms'] = ms['round'] - sum(parts)
    # XLA may join pieces in a whole round; what is apart counts all the same.
    own = line['tree_ms'] + line['commit_ms']
    line['outside'] = (own + max(line['rest_ms'], 0.0)) / ms['round']
  return line | _beside(round, device)


def _beside(round: Row, device: Device | None) -> Row:
  """What is published and predicted of a round, where there is such a model."""
  target, method = round['setting'].split()[0], round['labels'][0].split()[0]
  if target not in TARGETS:
    return {}
  config, line = TARGETS[target], {}
  tau = published(target, method, round['nodes'])
  if tau is not None:
    line |= {'tau': tau, 'speed_up': tau / round['of_plain']}
  at = Setting(
    nodes=round['nodes'],
    accepted=tau or 1.0,
    batch=round['batch'],
    context=round['context'],
  )
  if device is not None:
    drafter = drafter_of(method, config)
    line['predicted_ms'] = predict(config, drafter, device, at).round_ms
  if method == PLAIN:
    moved = target_pass(config, at, 1).bytes / round['ms'] / 1e6
    line['gb_s'] = moved
    line['bandwidth'] = moved / device.gb_s if device else None
  return line


def kernels(rows: Sequence[Row], device: Device | None) -> list[Row]:
  """A line per op and backend that was checked, then one per timed call."""
  rows = [x for x in rows if x['part'] == 'kernel' and x['ok'] is not None]
  groups: dict[tuple[str, str], list[Row]] = {}
  for row in rows:
    if not row['timed']:
      groups.setdefault((row['op'], row['backend']), []).append(row)
  checks = [
    {
      'op': op,
      'backend': _backend(group[0]),
      'case': f'{sum(x["ok"] for x in group)} of {len(group)} right',
      'error': max(x.get('error') or 0.0 for x in group),
    }
    for (op, _), group in groups.items()
  ]
  return checks + [_timed(x, device) for x in rows if x['timed']]


def _timed(row: Row, device: Device | None) -> Row:
  line = {name: row.get(name) for name in ('op', 'case', 'ms', 'xla_ms')}
  line['backend'] = _backend(row)
  if device is not None and row['ok']:
    line['least_ms'] = row['bytes'] / device.gb_s / 1e6
  return line


def _backend(row: Row) -> str:
  return row['backend'] + (', interpreted' if row['interpreted'] else '')


def failures(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
  """(name, why) of what was begun and failed, or is wrong."""
  for row in rows:
    if row.get('ok') is False:
      yield row['name'], row['why']


def not_run(rows: Sequence[Row]) -> dict[str, list[str]]:
  """Names by the reason why they were not begun."""
  found: dict[str, list[str]] = {}
  for row in rows:
    if row.get('ok', True) is None:
      found.setdefault(row['why'], []).append(row['name'])
  return found


def of(lines: Sequence[Row], **wanted: Any) -> Row | None:
  """The first line with these values."""
  return next(
    (x for x in lines if all(x.get(k) == v for k, v in wanted.items())), None
  )
