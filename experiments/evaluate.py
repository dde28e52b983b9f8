"""Measures methods on prompts against plain decoding, all in one run.

  python -m experiments.evaluate --gin_file=experiments/configs/default.gin

Rows per prompt go to `metrics.jsonl` in the run folder as they are made, one
row per method to `summary.jsonl` at the end. The same command goes on where it
was interrupted; of the batch in which that happened, nothing is kept.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm
from absl import app

from experiments import run, scoring
from experiments.lineup import Builder, Variant, load_all, opened
from experiments.measure import Bench, measure
from experiments.prompts import read_prompts, to_ask
from experiments.scoring import Scorer
from experiments.summary import PLAIN, as_table, summarise

METRICS = 'metrics.jsonl'
SUMMARY = 'summary.jsonl'
SAMPLING = ('max_new_tokens', 'temperature', 'top_k', 'top_p', 'min_p')


def evaluate(
  *,
  run_dir: str | pathlib.Path,
  methods: Sequence[Builder | Variant] = (),
  target: str = 'default',
  drafters: Mapping[str, str] | None = None,
  prompts: str = 'gsm8k_test_20',
  limit: int | None = None,
  chat: bool = True,
  max_new_tokens: int = 96,
  temperature: float = 0.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  seed: int = 0,
  thinking: bool = False,
  stop_at_end: bool = True,
  batch: int = 1,
  repeats: int = 1,
  pad: bool = True,
  score: bool = False,
  dtype: str = 'auto',
  mesh: Any = None,
) -> list[dict[str, Any]]:
  """Decodes every prompt with plain decoding and with each method.

  Args:
    run_dir: made, or gone on with if it was made with the same settings.
    methods: build functions (gin binds their options), names or variants; 'ar'
      is always measured and need not be there.
    target: folder, hub id or 'default'.
    drafters: folder or hub id by method name; the packaged one if absent.
    prompts: name or path of a prompt set.
    limit: take so many prompts at most.
    chat: each prompt is a user's turn in the target's template; else raw text.
    max_new_tokens: per prompt, the prefill's token included.
    temperature: with the next three, see `Decoder.generate`.
    seed: prompt i is decoded with seed + i, whatever the batch.
    thinking: of the chat template.
    stop_at_end: whether the checkpoint's end ids end a text.
    batch: prompts decoded together.
    repeats: timed decodings of each prompt by each method; the median counts.
    pad: room for the longest prompt in every call, so that a method compiles
      once; else short prompts get smaller programs, which are a bit faster.
    score: also tell which answers are right, see `experiments.scoring`.
    dtype: of weights and compute.
    mesh: several devices, see `sharding.make_mesh`; None is one.

  Returns:
    One summary row per method, plain decoding first.
  """
  settings = dict(locals())
  del settings['run_dir']
  for name in ('batch', 'repeats'):
    if settings[name] < 1:
      raise ValueError(f'{name} is {settings[name]}; it must be at least 1.')
  texts = read_prompts(prompts, limit=limit)
  right = scoring.load(prompts, limit=limit) if score else None
  decoders = load_all(methods, target, drafters or {}, dtype, mesh)
  settings['mesh'] = None if mesh is None else dict(mesh.shape)
  folder = pathlib.Path(run_dir)
  constants = opened(folder, settings, methods, decoders)
  encode = lambda prompt: decoders[PLAIN].encode(prompt, thinking=thinking)
  asked = list(map(encode, to_ask(texts, chat)))
  bench = Bench(
    decoders=decoders,
    prompts=asked,
    generate={
      **{name: settings[name] for name in SAMPLING},
      'stop_ids': None if stop_at_end else (),
      'pad_to': max(map(len, asked)) if pad else 0,
    },
    seed=seed,
    repeats=repeats,
    constants=constants,
  )
  rows = _measure_all(bench, folder / METRICS, batch, right)
  rows.sort(key=lambda row: list(decoders).index(row['label']))
  summaries = summarise(rows)
  run.write_rows(folder / SUMMARY, summaries)
  return summaries


def _measure_all(
  bench: Bench, path: pathlib.Path, batch: int, right: Scorer | None
) -> list[Any]:
  """All rows, those of an earlier start included."""
  count = len(bench.prompts)
  rows = run.read_rows(path)
  with tqdm.tqdm(total=count, unit='prompt', file=sys.stderr) as bar:
    for first in range(0, count, batch):
      part = range(first, min(first + batch, count))
      made = measure(bench, part, rows)
      for row in made if right else ():
        row['right'] = right(row['prompt'], row['text'])
      run.append_rows(path, made)
      rows += made
      bar.update(len(part))
  return rows


main = run.command(run.tabled(evaluate, as_table))


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import evaluate as imported

  run.define_flags()
  app.run(imported.main)
