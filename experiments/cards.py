"""Cards of trained models: data, command, steps, time, figures."""

from __future__ import annotations

import json
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from experiments import logs, run
from specjax.weights.files import WEIGHTS
from specjax.weights.safetensors import stored_shapes

WHAT = {
  'target': 'A byte-level language model in the Qwen3 layout.',
  'draft_model': 'An independent drafter, distilled from the target.',
  'dflash': 'A DFlash drafter (arXiv:2602.06036); serves the trees too.',
  'treeflash': "That DFlash with TreeFlash's correction (arXiv:2606.03819).",
  'eagle3': 'An EAGLE-3 drafter (arXiv:2503.01840).',
  'jetspec': 'A JetSpec head (arXiv:2606.18394).',
  'taps': "TAPS's scorer (arXiv:2606.00487) for `dflash` beside it.",
  'dflash_opd': '`dflash` after Draft-OPD (arXiv:2605.29343).',
}


def write(
  folder: pathlib.Path, record: pathlib.Path, seconds: float, figures: Any
) -> None:
  """Writes `folder`/README.md.

  Args:
    folder: of the model.
    record: of its training; holds run.json and train.jsonl, or nothing.
    seconds: of the whole stage, on the machine of the record.
    figures: by name; None takes the last row of the training.
  """
  rows = run.read_rows(record / logs.ROWS)
  figures = dict(rows[-1] if figures is None and rows else figures or {})
  steps = figures.pop('step', None)
  count = sum(map(math.prod, stored_shapes(folder / WEIGHTS).values()))
  name = folder.name
  stored = 'float32' if name == 'taps' else 'bfloat16'
  lines = [
    f'# {name}',
    '',
    WHAT[name],
    '',
    f'- **Size.** {count:,} parameters, stored in {stored}.',
    f'- **Data.** {_data(name)}',
    '- **Command.** `python -m experiments.build_default '
    f'--prompts=gsm8k_train.jsonl --only={name}`; settings in '
    f'{_settings(name)}.',
    f'- **Time.** {seconds / 60:.0f} minutes on {_machine(record)}'
    + (f', {steps} steps.' if steps else '.'),
    f'- **Last figures.** {_figures(figures)}.'
    + _meaning(name, record, figures),
    '',
  ]
  (folder / 'README.md').write_text('\n'.join(lines))


def _data(name: str) -> str:
  if name == 'target':
    return (
      "Questions and answers of GSM8K's train split (Cobbe et al., "
      'arXiv:2110.14168, MIT license), 512 bytes of each at most.'
    )
  if name == 'dflash_opd':
    return "The drafter's own rounds on questions of GSM8K's train split."
  return (
    "The target's answers to questions of GSM8K's train split, half of them "
    'greedy, half at temperature 1.'
  )


def _settings(name: str) -> str:
  if name == 'taps':
    return '`experiments/build_default.py`'
  return f'`experiments/configs/train/{name}.gin`'


def _machine(record: pathlib.Path) -> str:
  path = record / run.RECORD
  if not path.exists():
    return 'the same machine'
  device: Mapping[str, Any] = json.loads(path.read_text())['device']
  return f'{device["cpus"]} cores ({device["system"]}, {device["device"]})'


def _figures(figures: Mapping[str, Any]) -> str:
  skipped = ('rate', 'grad_norm', 'low', 'high')
  parts = [f'{k} {x:.3g}' for k, x in figures.items() if k not in skipped]
  if 'low' in figures:
    interval = f'[{figures["low"]:.2f}, {figures["high"]:.2f}]'
    parts = [p + f' {interval}' * p.startswith('accepted ') for p in parts]
  return ', '.join(parts)


def _meaning(
  name: str, record: pathlib.Path, figures: Mapping[str, Any]
) -> str:
  """What `accepted` is among them."""
  if name == 'taps':
    return (
      ' `accepted` and `marginal_accepted` are expected drafts per round, by '
      "the scorer and by the drafter's own laws, of held-out traces."
    )
  if 'low' not in figures:
    return ''
  config = (record / run.CONFIG).read_text()
  count = re.search(r'^held_out\.HeldOut\.limit = (\d+)$', config, re.MULTILINE)
  some = f'{count[1]} questions' if count else 'questions'
  return (
    f' `accepted` is tokens per round of greedy decoding on {some} of the '
    'train split, to watch the training; what counts is in '
    "the project's README."
  )
