"""Is quality unchanged? Right answers and equal ids by method, from rows.

  python -m experiments.accuracy RUN_DIR [RUN_DIR ...]

Each is the run folder of `python -m experiments.evaluate`, or a file of rows of
it or of `experiments.peers`. Rows that were not scored when they were made are
scored now, with the prompt set they name; nothing is decoded.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import app

from experiments import run, scoring, tables
from experiments.evaluate import METRICS
from experiments.summary import PLAIN

Rows = dict[int, Mapping[str, Any]]  # by prompt
HEAD = ('method', 'right', 'lost', 'won', 'equal ids')


def read(source: str | pathlib.Path) -> dict[str, Rows]:
  """Scored rows by label, all of one prompt set.

  Raises:
    ValueError: there are none, or they cannot be compared.
  """
  path = pathlib.Path(source).expanduser()
  path = path / METRICS if path.is_dir() else path
  rows = run.read_rows(path)
  wanted = {'label', 'prompt', 'prompt_set', 'ids', 'text'}
  if not rows or any(wanted - row.keys() for row in rows):
    raise ValueError(
      f'{path} holds no rows per prompt; give a run folder of '
      '`python -m experiments.evaluate`.'
    )
  if len({row['prompt_set'] for row in rows}) > 1:
    raise ValueError(f'{path} holds rows of several prompt sets; give one.')
  if any('right' not in row for row in rows):
    right = scoring.load(rows[0]['prompt_set'])
    rows = [row | {'right': right(row['prompt'], row['text'])} for row in rows]
  by_label: dict[str, Rows] = {}
  for row in rows:
    of = by_label.setdefault(row['label'], {})
    if row['prompt'] in of:
      raise ValueError(f'{path} holds rows of several runs; give those of one.')
    of[row['prompt']] = row
  plain = by_label.get(PLAIN, {})
  for label, of in by_label.items():
    if of.keys() != plain.keys():
      raise ValueError(
        f'{path} holds other prompts of {label!r} than of {PLAIN!r}; let the '
        'run end.'
      )
  return by_label


def compare(by_label: Mapping[str, Rows]) -> list[dict[str, Any]]:
  """A row per method: its answers against plain decoding's, by prompt."""
  compared = []
  for label, rows in by_label.items():
    pairs = [(by_label[PLAIN][i], row) for i, row in rows.items()]
    was = lambda before, now, pairs=pairs: sum(
      (a['right'], b['right']) == (before, now) for a, b in pairs
    )
    compared.append(
      {
        'label': label,
        'prompts': len(pairs),
        'right': was(True, True) + was(False, True),
        'lost': was(True, False),
        'won': was(False, True),
        'equal': sum(a['ids'] == b['ids'] for a, b in pairs),
      }
    )
  return compared


def as_markdown(compared: Sequence[Mapping[str, Any]]) -> str:
  """A line per method, and in words what they say.

  Lost are answers that plain decoding has right and the method wrong, won the
  reverse.
  """
  lines = [HEAD]
  for c in compared:
    share = f'{c["right"]}/{c["prompts"]} ({c["right"] / c["prompts"]:.1%})'
    changed = map(str, (c['lost'], c['won']))
    equal = f'{c["equal"]}/{c["prompts"]}'
    lines.append((c['label'], share, *changed, equal))
  return f'{tables.as_markdown(lines)}\n\n{verdict(compared)}'


def verdict(compared: Iterable[Mapping[str, Any]]) -> str:
  """One sentence: whether any method changed an answer."""
  changed = [
    f'{c["label"]} ({c["lost"] + c["won"]} answers, '
    f'{c["prompts"] - c["equal"]} texts)'
    for c in compared
    if c['equal'] < c['prompts'] or c['lost'] or c['won']
  ]
  if not changed:
    return f'Unchanged by every method: all texts are those of {PLAIN}.'
  return f'Changed by {", ".join(changed)}.'


def main(argv: Sequence[str]) -> None:
  if len(argv) < 2:
    raise app.UsageError('give at least one RUN_DIR or file of rows.')
  try:
    for source in argv[1:]:
      print(f'{source}\n\n{as_markdown(compare(read(source)))}\n')
  except ValueError as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  app.run(main)
