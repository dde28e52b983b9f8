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
from experiments.prompts import as_messages, read_prompts
from specjax import api, metrics
from specjax.decoder import Decoder
from specjax.method import sharpness_of

GREEDY = (0.0, 1.0)

_TARGET = flags.DEFINE_string('target', 'default', 'Folder or hub id.')
_METHODS = flags.DEFINE_list(
  'methods', ['dflash', 'ddtree', 'treeflash'], 'Names, each as name or '
  'name:nodes.'
)  # fmt: skip
_PROMPTS = flags.DEFINE_string('prompts', 'gsm8k_test_20', 'Name or path.')
_LIMIT = flags.DEFINE_integer('limit', 20, 'Prompts taken from the set.')
_NEW = flags.DEFINE_integer('max_new_tokens', 96, 'Tokens per answer.')
_LAWS = flags.DEFINE_list(
  'laws', ['1:1', '0.6:0.95'], 'Sampling laws, each temperature:top_p.'
)
_SHARPNESS = flags.DEFINE_list(
  'sharpness', ['0.7', '1', '1.4', '2'], 'Each one number, or one per depth '
  'joined by slashes.'
)  # fmt: skip
_BATCH = flags.DEFINE_integer('batch', 20, 'Prompts decoded together.')
_OUT = flags.DEFINE_string('out', None, 'JSON lines, gone on with.')


def coupling() -> list[dict[str, Any]]:
  """One row per cell."""
  prompts = read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  laws = [GREEDY] + [tuple(map(float, x.split(':'))) for x in _LAWS.value]
  couplings = [None] + [
    tuple(map(float, x.split('/'))) for x in _SHARPNESS.value
  ]
  path = pathlib.Path(_OUT.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = run.read_rows(path)
  cells = [
    (name, law, sharpness)
    for name in _METHODS.value
    for law in laws
    for sharpness in (couplings if law != GREEDY else [None])
  ]
  shared: Decoder | None = None
  for name, law, sharpness in tqdm.tqdm(cells, file=sys.stderr, unit='cell'):
    key = {
      'target': _TARGET.value,
      'method': name,
      'temperature': law[0],
      'top_p': law[1],
      'sharpness': sharpness and list(sharpness),
      'prompt_set': _PROMPTS.value,
      'prompts': len(prompts),
      'max_new_tokens': _NEW.value,
    }
    if any(all(row[k] == v for k, v in key.items()) for row in rows):
      continue
    if shared is None or shared[0] != name:
      shared = (name, _load(name))
    made = {**key, **_cell(shared[1], prompts, law, sharpness), **run.device()}
    _check_texts(rows, made)
    rows.append(made)
    run.append_rows(path, [made])
  return rows


def _load(name: str) -> Decoder:
  name, _, nodes = name.partition(':')
  return api.load(_TARGET.value, name, nodes=int(nodes) if nodes else None)


def _cell(decoder: Decoder, prompts, law, sharpness) -> dict[str, Any]:
  method = dataclasses.replace(decoder.method, sharpness=sharpness)
  decoder = Decoder(
    method=method, params=decoder.params, tokenizer=decoder.tokenizer
  )
  out = decoder.generate(
    [as_messages(prompt) for prompt in prompts],
    max_new_tokens=_NEW.value,
    temperature=law[0],
    top_p=law[1],
    batch_size=_BATCH.value,
  )
  tokens = [len(ids) - 1 for ids in out.tokens]
  rounds = [len(walk) for walk in out.accepted]
  low, high = metrics.interval(tokens, rounds)
  return {
    'nodes': decoder.nodes,
    'mean_accepted': metrics.mean_accepted(tokens, rounds),
    'low': low,
    'high': high,
    'tau_paper': metrics.tau_paper(out.accepted),
    'acceptance_by_depth': metrics.acceptance_by_depth(
      out.accepted, method.path_rows - 1
    ),
    'ids': out.tokens,
  }


def _check_texts(rows: Sequence[dict[str, Any]], made: dict[str, Any]) -> None:
  """Raises RuntimeError where coupling changed a text, which it cannot."""
  same = ('target', 'method', 'temperature', 'top_p', 'prompt_set', 'prompts')
  same += ('max_new_tokens',)
  for row in rows:
    if all(row[k] == made[k] for k in same) and row['ids'] != made['ids']:
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
    lines.append(
      f'{row["method"]:<14} nodes {row["nodes"]:>3}  T {row["temperature"]:<4g}'
      f' top-p {row["top_p"]:<4g}  {kind:<16} {row["mean_accepted"]:.2f} '
      f'[{row["low"]:.2f}, {row["high"]:.2f}]'
    )
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
  for number in _SHARPNESS.value:
    sharpness_of(tuple(map(float, number.split('/'))))
  try:
    print(as_table(coupling()))
  except ValueError as error:
    sys.exit(f'error: {error}')


if __name__ == '__main__':
  flags.mark_flag_as_required('out')
  app.run(main)
