"""Serving under load: throughput and latency by concurrent requests.

  python -m experiments.concurrency \
    --gin_file=experiments/configs/concurrency.gin

As many slots as requests are decoded together, and a request is taken when a
slot is free. Methods take turns at every concurrency, plain decoding among
them. Raw rows, one per method, concurrency and turn, go to `turns.jsonl` in the
run folder. The same command goes on where it was interrupted; of the turn in
which that happened, nothing is kept.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm
from absl import app

from experiments import run
from experiments.concurrency_summary import as_table, summarise
from experiments.lineup import Builder, Variant, load_all, opened
from experiments.measure import facts
from experiments.prompts import read_prompts, to_ask
from experiments.serving_load import SAMPLING, Load
from experiments.summary import PLAIN
from specjax.checks import check_whole
from specjax.decoder import Decoder

TURNS = 'turns.jsonl'
SUMMARY = 'concurrency.jsonl'
CONFIG = 'experiments/configs/concurrency.gin'


def concurrency(
  *,
  run_dir: str | pathlib.Path,
  methods: Sequence[Builder | Variant] = (),
  target: str = 'default',
  drafters: Mapping[str, str] | None = None,
  concurrencies: Sequence[int] = (1, 4, 8, 16, 32),
  prompts: str = 'gsm8k_test_20',
  limit: int | None = None,
  per_slot: int = 4,
  chat: bool = True,
  max_new_tokens: int = 96,
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  seed: int = 0,
  thinking: bool = False,
  stop_at_end: bool = True,
  chunk: int = 8,
  repeats: int = 3,
  dtype: str = 'auto',
) -> list[dict[str, Any]]:
  """Serves the same requests at every concurrency by every method.

  Args:
    run_dir: made, or gone on with if it was made with the same settings.
    methods: as for `evaluate`; 'ar' is always measured.
    target: folder, hub id or 'default'.
    drafters: folder or hub id by method name; the packaged one if absent.
    concurrencies: requests decoded together.
    prompts: name or path of a prompt set, gone through again and again.
    limit: take so many prompts of it at most.
    per_slot: requests per slot, and no fewer in all than there are prompts.
    chat: each prompt is a user's turn in the target's template; else raw text.
    max_new_tokens: per request.
    temperature: with the next three, see `Decoder.generate`.
    seed: request i is decoded with seed + i.
    thinking: of the chat template.
    stop_at_end: whether the checkpoint's end ids end a text.
    chunk: see `Decoder.serve`.
    repeats: turns; medians count.
    dtype: of weights and compute.

  Returns:
    One row per concurrency and method, plain decoding first.

  Raises:
    ValueError: names the setting that cannot be, or the request that cannot be
      served.
  """
  settings = dict(locals())
  del settings['run_dir']
  check_whole(1, per_slot=per_slot, chunk=chunk, repeats=repeats)
  for slots in concurrencies:
    check_whole(1, concurrencies=slots)
  texts = read_prompts(prompts, limit=limit)
  decoders = load_all(methods, target, drafters or {}, dtype)
  folder = pathlib.Path(run_dir)
  constants = opened(folder, settings, methods, decoders)
  encode = lambda prompt: decoders[PLAIN].encode(prompt, thinking=thinking)
  asked = list(map(encode, to_ask(texts, chat)))
  loads = [
    Load(
      prompts=asked,
      count=max(per_slot * slots, len(asked)),
      slots=slots,
      chunk=chunk,
      sampling={name: settings[name] for name in SAMPLING},
      stop_ids=None if stop_at_end else (),
      seed=seed,
    )
    for slots in concurrencies
  ]
  turns = _turns(decoders, loads, repeats, constants, folder / TURNS)
  summaries = summarise(turns)
  run.write_rows(folder / SUMMARY, summaries)
  return summaries


def _turns(
  decoders: Mapping[str, Decoder],
  loads: Sequence[Load],
  repeats: int,
  constants: Mapping[str, Any],
  path: pathlib.Path,
) -> list[dict[str, Any]]:
  """All raw rows, those of an earlier start included."""
  rows = run.read_rows(path)
  have = {(row['concurrency'], row['turn']) for row in rows}
  labels = list(decoders)
  with tqdm.tqdm(
    total=repeats * len(loads), unit='turn', file=sys.stderr
  ) as bar:
    for load in loads:
      missing = [t for t in range(repeats) if (load.slots, t) not in have]
      bar.update(repeats - len(missing))
      for decoder in decoders.values() if missing else ():
        load.warm_up(decoder)
      for turn in missing:
        first = turn % len(labels)
        served = {
          label: load.serve(decoders[label])
          for label in labels[first:] + labels[:first]
        }
        made = [
          constants
          | facts(label, decoders[label])
          | {'concurrency': load.slots, 'turn': turn}
          | served[label]
          for label in labels
        ]
        for row in made if turn else ():  # texts repeat; the first turn's stay
          del row['ids']
        run.append_rows(path, made)
        rows += made
        bar.update()
  return rows


main = run.command(run.tabled(concurrency, as_table))


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import concurrency as imported

  run.define_flags(imported.CONFIG)
  app.run(imported.main)
