"""Where the time of a round goes: drafter, tree, target, bookkeeping.

  python -m experiments.breakdown --gin_file=experiments/configs/breakdown.gin

Every method is stopped in the middle of the same prompts, and from that state a
whole round and its pieces are timed, each as a program of its own that runs it
several times. Programs of a method take turns and medians count. `draft` is
noise and drafter, found as drafter and tree together less the tree; `tree` is
the tree with recorded candidates; `verify` is the target's pass with head and
rule; `commit` is the path, both caches and the text. Shares are of the whole
round; what they leave is `rest`, and it is negative where XLA joins pieces.
Rows go to `breakdown.jsonl` in the run folder.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import tqdm
from absl import app

from experiments import pieces, run
from experiments.lineup import Builder, Variant, load_all, sources
from experiments.prompts import read_prompts, to_ask
from experiments.states import after_prompt
from experiments.tables import aligned
from experiments.timing import interleaved
from specjax.decode.loop import decode
from specjax.decoder import Decoder
from specjax.inputs import Rows, make_rows
from specjax.types import DecodeState

ROWS = 'breakdown.jsonl'
CONFIG = 'experiments/configs/breakdown.gin'
PARTS = ('draft', 'tree', 'verify', 'commit')


def breakdown(
  *,
  run_dir: str | pathlib.Path,
  methods: Sequence[Builder | Variant] = (),
  target: str = 'default',
  drafters: Mapping[str, str] | None = None,
  prompts: str = 'gsm8k_test_20',
  chat: bool = True,
  batch: int = 1,
  begun: int = 8,
  max_new_tokens: int = 96,
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  seed: int = 0,
  repeats: int = 15,
  inner: int = 8,
  dtype: str = 'auto',
  summary: str | None = None,
) -> list[dict[str, Any]]:
  """Times the pieces of a round of plain decoding and of each method.

  Args:
    run_dir: made, or gone on with if it was made with the same settings:
      methods that are there are not timed again.
    methods: build functions (gin binds their options), names, or variants.
    target: folder, hub id or 'default'.
    drafters: folder or hub id by method name; the packaged one if absent.
    prompts: name or path of a prompt set, of which the first are taken.
    chat: each prompt is a user's turn in the target's template; else raw text.
    batch: prompts decoded together.
    begun: rounds decoded before the state that is timed.
    max_new_tokens: room in the caches, and more where `begun` rounds need it.
    temperature: with the next three, see `Decoder.generate`.
    seed: prompt i is decoded with seed + i.
    repeats: turns, after one that is not counted.
    inner: runs of a piece per turn.
    dtype: of weights and compute.
    summary: `summary.jsonl` of an evaluation whose mean accepted is shown too.

  Returns:
    One row per method, plain decoding first.

  Raises:
    ValueError: names the setting that cannot be.
  """
  settings = dict(locals())
  del settings['run_dir']
  for name in ('batch', 'begun', 'repeats', 'inner'):
    if settings[name] < 1:
      raise ValueError(f'{name} is {settings[name]}; it must be at least 1.')
  accepted = _accepted(summary)
  texts = read_prompts(prompts, limit=batch)
  if len(texts) < batch:
    raise ValueError(f'batch is {batch} and {prompts!r} holds {len(texts)}.')
  decoders = load_all(methods, target, drafters or {}, dtype)
  settings['methods'] = {k: repr(d.method) for k, d in decoders.items()}
  settings['variants'] = sources(methods)
  folder = pathlib.Path(run_dir)
  run.open_folder(folder, settings)
  sampling = ('temperature', 'top_k', 'top_p', 'min_p', 'seed')
  deepest = max(d.method.path_rows for d in decoders.values())
  constants = {
    **{name: settings[name] for name in sampling},
    **dict(batch=batch, begun=begun, repeats=repeats, inner=inner),
    'prompt_set': prompts,
    'versions': run.versions(),
    **run.device(),
  }
  first = next(iter(decoders.values()))
  asked = make_rows(
    [first.encode(x) for x in to_ask(texts, chat)],
    vocab=first.config.vocab,
    max_length=first.config.max_length,
    # No row may be done while it is timed.
    max_new_tokens=max(max_new_tokens, (begun + 1) * deepest + 1),
    **{name: settings[name] for name in sampling},
  )
  rows = run.read_rows(folder / ROWS)
  have = {row['label'] for row in rows}
  for label, decoder in tqdm.tqdm(decoders.items(), unit='method'):
    if label in have:
      continue
    state = _state(decoder, asked, begun)
    row = {'label': label, **constants, **_facts(decoder, state)}
    row |= _times(decoder, state, repeats, inner)
    row['mean_accepted'] = accepted.get(label)
    run.append_rows(folder / ROWS, [row])
    rows.append(row)
  return rows


def _state(decoder: Decoder, rows: Rows, begun: int) -> DecodeState:
  """After the prompt and `begun` rounds."""
  method = decoder.method
  state = after_prompt(method, decoder.params, rows)
  return decode(method, decoder.params, state, max_rounds=begun)[0]


def _facts(decoder: Decoder, state: DecodeState) -> dict[str, Any]:
  return {
    'method': decoder.method.name,
    'nodes': decoder.nodes,
    'dtype': decoder.dtype,
    'context': jax.device_get(state.context.length_B).tolist(),
    'slots': state.cache.capacity,
  }


def _times(
  decoder: Decoder, state: DecodeState, repeats: int, inner: int
) -> dict[str, float]:
  """Median milliseconds of a round and its parts, and their shares."""
  args = (decoder.method, decoder.params, state)
  drafted = pieces.drafted(*args)
  parts = {
    'round': pieces.whole_round(*args),
    'drafted': pieces.drafting(*args),
    'tree': pieces.building(*args),
    'verify': pieces.checking(*args, drafted),
    'commit': pieces.committing(*args, drafted),
  }
  jobs = {name: pieces.job(*part, inner) for name, part in parts.items()}
  seconds = interleaved(jobs, repeats=repeats)
  ms = {
    name: 1000 * statistics.median(times) / inner
    for name, times in seconds.items()
  }
  return shares(ms)


def shares(ms: Mapping[str, float]) -> dict[str, float]:
  """`<part>_ms` and `<part>_share` from the five times; shares add up to 1.

  The drafter cannot be timed without the tree that asks it, nor is its time
  below 0, which noise can make of a difference.
  """
  parts = {name: ms[name] for name in PARTS if name != 'draft'}
  parts['draft'] = max(ms['drafted'] - ms['tree'], 0.0)
  parts['rest'] = ms['round'] - sum(parts.values())
  row = {'round_ms': ms['round']}
  for name in (*PARTS, 'rest'):
    row[f'{name}_ms'] = parts[name]
    row[f'{name}_share'] = parts[name] / ms['round']
  return row


def _accepted(summary: str | None) -> dict[str, float]:
  """Mean accepted by label."""
  if summary is None:
    return {}
  path = pathlib.Path(summary).expanduser()
  if not path.is_file():
    raise ValueError(
      f'there is no summary {path}; give the summary.jsonl that '
      '`python -m experiments.evaluate` wrote, or leave it out.'
    )
  return {row['label']: row['mean_accepted'] for row in run.read_rows(path)}


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Right-aligned columns; `nodes` are rows verified, the root included."""
  head = 'method nodes round_ms draft tree verify commit rest accepted'
  lines = [head.split()]
  for row in rows:
    lines.append(
      [
        row['label'],
        str(row['nodes']),
        f'{row["round_ms"]:.3f}',
        *(f'{row[f"{name}_share"]:.1%}' for name in (*PARTS, 'rest')),
        '-' if row['mean_accepted'] is None else f'{row["mean_accepted"]:.2f}',
      ]
    )
  return aligned(lines)


main = run.command(run.tabled(breakdown, as_table))


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import breakdown as imported

  run.define_flags(imported.CONFIG)
  app.run(imported.main)
