"""What coupled drafting brings: mean accepted by method, law and sharpness.

  python -m experiments.coupling --prompts=TRAIN.jsonl --out=runs/coupling.jsonl

Each method decodes the same prompts greedily, then under every sampling law
uncoupled and coupled at each sharpness. Coupling changes no text, which is
checked. Fit a sharpness on training prompts; report it on others.

A cell that `--out` holds already is not run again.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm
from absl import app, flags

from experiments import run
from experiments.held_out import figures
from experiments.prompts import read_prompts, to_ask
from specjax import api, metrics
from specjax.decoder import Decoder
from specjax.training.fingerprints import texts_fingerprint

GREEDY = (0.0, 1.0)

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder or hub id.', flag_values=_FLAGS
)
_METHODS = flags.DEFINE_list(
  'methods', ['dflash', 'ddtree', 'treeflash'], 'Names, each as name, '
  'name:nodes or name:nodes:rule.', flag_values=_FLAGS)  # fmt: skip
_DRAFTER = flags.DEFINE_string(
  'drafter',
  None,
  'Folder, or name of a packaged one, for all methods; None: their own.',
  flag_values=_FLAGS,
)
_PROMPTS = flags.DEFINE_string(
  'prompts', 'gsm8k_test_20', 'Name or path.', flag_values=_FLAGS
)
_LIMIT = flags.DEFINE_integer(
  'limit', 20, 'Prompts taken from the set.', flag_values=_FLAGS
)
_NEW = flags.DEFINE_integer(
  'max_new_tokens', 96, 'Tokens per answer.', flag_values=_FLAGS
)
_LAWS = flags.DEFINE_list(
  'laws',
  ['1:1', '0.6:0.95'],
  'Sampling laws, each temperature:top_p.',
  flag_values=_FLAGS,
)
_SHARPNESS = flags.DEFINE_list(
  'sharpness', ['0.7', '1', '1.4', '2'], 'Each one number, or one per depth '
  'joined by slashes.', flag_values=_FLAGS)  # fmt: skip
_BATCH = flags.DEFINE_integer(
  'batch', 20, 'Prompts decoded together.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'JSON lines, gone on with.', flag_values=_FLAGS
)


def coupling() -> list[dict[str, Any]]:
  """One row per cell."""
  prompts = read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  laws = [GREEDY] + [_numbers('laws', x, ':', 2) for x in _LAWS.value]
  couplings = [None] + [_numbers('sharpness', x, '/') for x in _SHARPNESS.value]
  for law in laws:
    if law[1] > 1:
      raise ValueError(f'laws holds top_p {law[1]}; it is at most 1.')
  for name in _METHODS.value:  # before the first of them is measured
    api.build_of(_parts(name)[0])
  path = pathlib.Path(_OUT.value)
  rows = run.read_rows(path)
  if any('sharpness' not in row for row in rows):
    raise ValueError(f'{path} holds rows of another script; give another out.')
  path.parent.mkdir(parents=True, exist_ok=True)
  cells = [
    (name, law, sharpness)
    for name in _METHODS.value
    for law in laws
    for sharpness in (couplings if law != GREEDY else [None])
  ]
  shared: tuple[str, Decoder] | None = None
  for name, law, sharpness in tqdm.tqdm(cells, file=sys.stderr, unit='cell'):
    key = {
      'target': _TARGET.value,
      'method': name,
      'drafter': _DRAFTER.value,
      'temperature': law[0],
      'top_p': law[1],
      'sharpness': sharpness and list(sharpness),
      'prompt_set': _PROMPTS.value,
      'prompts': len(prompts),
      'texts': texts_fingerprint(prompts),
      'max_new_tokens': _NEW.value,
    }
    if any(all(row.get(k) == v for k, v in key.items()) for row in rows):
      continue
    if shared is None or shared[0] != name:
      shared = (name, _load(name))
    made = {**key, **_cell(shared[1], prompts, law, sharpness), **run.device()}
    _check_texts(rows, made)
    rows.append(made)
    run.append_rows(path, [made])
  return rows


def _numbers(
  flag: str, entry: str, between: str, count: int | None = None
) -> tuple[float, ...]:
  """The numbers that an entry of a flag joins, so many of them."""
  try:
    numbers = tuple(map(float, entry.split(between)))
  except ValueError:
    numbers = ()
  if not numbers or count not in (None, len(numbers)) or min(numbers) <= 0:
    raise ValueError(
      f'{flag} holds {entry!r}; give {count or "some"} numbers above 0, joined '
      f'by {between!r}.'
    )
  return numbers


def _parts(entry: str) -> tuple[str, str, str]:
  """Name, nodes and rule, the last two perhaps empty."""
  parts = entry.split(':')
  if len(parts) > 3 or not all(n.isdecimal() for n in parts[1:2] if n):
    raise ValueError(
      f'methods holds {entry!r}; give name, name:nodes or name:nodes:rule.'
    )
  return tuple([*parts, '', ''][:3])


def _load(name: str) -> Decoder:
  name, nodes, rule = _parts(name)
  return api.load(
    _TARGET.value,
    name,
    _DRAFTER.value,
    nodes=int(nodes) if nodes else None,
    **({'rule': rule} if rule else {}),
  )


def _cell(decoder: Decoder, prompts, law, sharpness) -> dict[str, Any]:
  method = dataclasses.replace(decoder.method, sharpness=sharpness)
  decoder = Decoder(
    method=method, params=decoder.params, tokenizer=decoder.tokenizer
  )
  out = decoder.generate(
    to_ask(prompts),
    max_new_tokens=_NEW.value,
    temperature=law[0],
    top_p=law[1],
    batch_size=_BATCH.value,
  )
  found = figures(out)
  return {
    'nodes': decoder.nodes,
    'mean_accepted': found['accepted'],
    'low': found['low'],
    'high': found['high'],
    'tau_paper': metrics.tau_paper(out.accepted),
    'acceptance_by_depth': metrics.acceptance_by_depth(
      out.accepted, method.path_rows - 1
    ),
    'ids': out.tokens,
  }


def _check_texts(rows: Sequence[dict[str, Any]], made: dict[str, Any]) -> None:
  """Raises RuntimeError where coupling changed a text, which it cannot."""
  same = ('target', 'method', 'temperature', 'top_p', 'prompt_set', 'prompts')
  # By rejection a text depends on the drafter.
  same += ('max_new_tokens', 'drafter', 'texts')
  for row in rows:
    if all(row.get(k) == made[k] for k in same) and row['ids'] != made['ids']:
      raise RuntimeError(
        f'{made["method"]} at T = {made["temperature"]} gave another text with '
        f'sharpness {made["sharpness"]} than with {row["sharpness"]}.'
      )


def as_table(rows: Sequence[dict[str, Any]]) -> str:
  """A line per method and law; the last columns are sharpnesses."""
  lines = []
  for row in rows:
    kind = 'greedy' if not row['temperature'] else 'uncoupled'
    if row['sharpness']:
      kind = 's = ' + '/'.join(f'{s:g}' for s in row['sharpness'])
    drafter = f'  {row["drafter"]}' if row.get('drafter') else ''
    lines.append(
      f'{row["method"]:<14} nodes {row["nodes"]:>3}  T {row["temperature"]:<4g}'
      f' top-p {row["top_p"]:<4g}  {kind:<16} {row["mean_accepted"]:.2f} '
      f'[{row["low"]:.2f}, {row["high"]:.2f}]{drafter}'
    )
  return '\n'.join(lines)


main = run.command(lambda: print(as_table(coupling())))


if __name__ == '__main__':
  flags.mark_flag_as_required('out')
  app.run(main)
