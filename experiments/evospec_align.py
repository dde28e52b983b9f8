"""What EvoSpec's online alignment is worth, and what it costs.

  python -m experiments.evospec_align --target=default --perturb=0.2 \
    --prompts=gsm8k_test_20 --run_dir=runs/align [--ranks=RANKS --size=8192]

EvoSpec-style, our reconstruction (Zhang et al., arXiv:2605.27390): an
independent draft model drafts for a stream of prompts in chunks of rounds, and
between two chunks its low-rank adapters learn from what the target has just
judged, never from anything else. The draft model is --drafter, or for want of a
trained one the target's own weights with noise on its matrices (--perturb).

Arms: `off`; `on`, with the curriculum; `uniform`, all positions alike. All
begin with the same prompts, adapters that add nothing and an empty ring, greedy
and in float32. The draft model's cache keeps rows of older adapters, which
concerns acceptance only: a text that is not plain decoding's ends the run.

A stream this short needs larger steps than `alignment.Settings` has for long
ones, and an update after each chunk: a draft model that is bad from the start
does not drift, and --first=10 would leave it so.

Rows go to `rows.jsonl`, one per prompt and arm. The same command goes on where
it was interrupted, by arms: adapters are a stream's state and not kept, so an
arm that was cut short starts anew. Seconds leave out prefill and compilation.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tqdm
from absl import app, flags

from experiments import run
from experiments.evospec_stream import Bench, held_bytes, perturbed, stream
from experiments.prompts import read_prompts, to_ask
from experiments.tables import aligned
from specjax import api, metrics
from specjax.decoder import Decoder
from specjax.methods import draft_model
from specjax.models.config import to_hf
from specjax.models.transformer import scans
from specjax.types import Params
from specjax.vocab import feedback
from specjax.vocab.alignment import Settings
from specjax.vocab.evospec import EvoSpec
from specjax.weights.files import CONFIG, read_settings
from specjax.weights.safetensors import load_target

LABEL = 'EvoSpec-style, our reconstruction'
PLAIN, OFF, ON, UNIFORM = 'plain', 'off', 'on', 'uniform'
ARMS = (OFF, ON, UNIFORM)
ROWS = 'rows.jsonl'

_TARGET = flags.DEFINE_string('target', 'default', 'Folder, or default.')
_DRAFTER = flags.DEFINE_string('drafter', None, 'Folder of a draft model.')
_PERTURB = flags.DEFINE_float('perturb', 0.2, 'Noise, without a drafter.')
_PROMPTS = flags.DEFINE_string('prompts', 'gsm8k_test_20', 'Name or path.')
_LIMIT = flags.DEFINE_integer('limit', 20, 'Prompts of the stream.')
_NEW = flags.DEFINE_integer('max_new_tokens', 96, 'Tokens per answer.')
_NODES = flags.DEFINE_integer('nodes', 5, 'Rows verified, root included.')
_RANKS = flags.DEFINE_string('ranks', None, 'Ranked tokens, to cut the head.')
_SIZE = flags.DEFINE_integer('size', None, 'Of the list; None: all of it.')
_BUFFER = flags.DEFINE_integer('buffer', 512, 'Rare tokens beside the list.')
_CHUNK = flags.DEFINE_integer('chunk', 32, 'Rounds between two updates.')
_RATE = flags.DEFINE_float('rate', 1e-3, 'Learning rate.')
_BATCH = flags.DEFINE_integer('batch', 256, 'Positions of an update.')
_FIRST = flags.DEFINE_integer('first', 1000, 'Updates made without drift.')
_RING = flags.DEFINE_integer('ring', 1024, 'Positions kept.')
_TEXTS = flags.DEFINE_integer('texts', 4, 'Latest ones, learnt from.')
_BEST = flags.DEFINE_integer('best', 64, "Of the target's tokens, kept each.")
_RANK = flags.DEFINE_integer('rank', 8, 'Of the adapters.')
_LAYERS = flags.DEFINE_integer('layers', 7, 'Adapted, from the last; at most.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of noise, adapters and batches.')
_RUN_DIR = flags.DEFINE_string('run_dir', None, 'Results.', required=True)
USED = (
  *(_TARGET, _DRAFTER, _PERTURB, _PROMPTS, _LIMIT, _NEW, _NODES, _RANKS),
  *(_SIZE, _BUFFER, _CHUNK, _RATE, _BATCH, _FIRST, _RING, _TEXTS, _BEST),
  *(_RANK, _LAYERS, _SEED),
)


def load_bench(decoder: Decoder, longest: int) -> Bench:
  """The draft model as the flags say; texts are of prompts up to `longest`."""
  target = decoder.params.target
  if _DRAFTER.value is None:
    settings = to_hf(target.config)
    weights = perturbed(target, _PERTURB.value, _SEED.value)
  else:
    folder = pathlib.Path(_DRAFTER.value).expanduser()
    settings = read_settings(folder / CONFIG)
    weights = load_target(folder, dtype=target.dtype, stacked=scans(None))
  method = draft_model.build(
    target.config, settings, nodes=_NODES.value, rule='follow', coupled=False
  )
  params = Params(target=target, drafter=weights)
  if _RANKS.value is not None:
    vocab = EvoSpec(ranks=_RANKS.value, size=_SIZE.value, buffer=_BUFFER.value)
    method, params = vocab.wrap(method, params)
  return Bench(
    method=method,
    params=params,
    weights=weights,
    observe=feedback.observer(_BEST.value),
    best=_BEST.value,
    chunk=_CHUNK.value,
    new=_NEW.value,
    pad_to=longest,
    stop_ids=(*decoder.config.eos_ids, *decoder.tokenizer.eos_ids),
    ring=_RING.value,
    texts=_TEXTS.value,
    rank=_RANK.value,
    layers=_LAYERS.value,
    seed=_SEED.value,
  )


def settings_of(arm: str, common: Settings) -> Settings | None:
  """None for the arm that does not learn."""
  heat = {ON: common.heat, UNIFORM: math.inf}
  return None if arm == OFF else dataclasses.replace(common, heat=heat[arm])


def whole_arms(
  rows: Sequence[dict[str, Any]], prompts: int
) -> list[dict[str, Any]]:
  """The rows without those of arms that were cut short."""
  count = lambda arm: sum(row['arm'] == arm for row in rows)
  return [row for row in rows if count(row['arm']) == prompts]


def plain_rows(
  decoder: Decoder, bench: Bench, prompts: Sequence[Sequence[int]]
) -> Iterator[dict[str, Any]]:
  """The texts that every arm must give."""
  for ids in prompts:
    made = decoder.generate(
      [list(ids)],
      max_new_tokens=bench.new,
      stop_ids=bench.stop_ids,
      pad_to=bench.pad_to,
    )
    yield {'ids': made.tokens[0]}


def arm_rows(
  bench: Bench,
  settings: Settings | None,
  prompts: Sequence[Sequence[int]],
  texts: Sequence[Sequence[int]],
) -> Iterator[dict[str, Any]]:
  """A stream from its beginning, all programs compiled before.

  Raises:
    RuntimeError: a text that is not plain decoding's.
  """
  list(stream(bench, settings, prompts[:1]))  # compiles
  for i, row in enumerate(stream(bench, settings, prompts)):
    if row['ids'] != texts[i]:
      raise RuntimeError(
        f"the text of prompt {i} is not plain decoding's; drafting must not "
        'change a text, so this is a fault of the program.'
      )
    yield row


def all_rows(
  decoder: Decoder,
  bench: Bench,
  common: Settings,
  prompts: Sequence[Sequence[int]],
  path: pathlib.Path,
) -> list[dict[str, Any]]:
  """Plain decoding and every arm; whole ones that are there are kept."""
  found = run.read_rows(path)
  rows = whole_arms(found, len(prompts))
  if len(rows) < len(found):
    run.write_rows(path, rows)
  for arm in (PLAIN, *ARMS):
    if any(row['arm'] == arm for row in rows):
      continue
    if arm == PLAIN:
      made = plain_rows(decoder, bench, prompts)
    else:
      texts = [row['ids'] for row in rows if row['arm'] == PLAIN]
      made = arm_rows(bench, settings_of(arm, common), prompts, texts)
    turns = tqdm.tqdm(made, total=len(prompts), file=sys.stderr, desc=arm)
    for i, row in enumerate(turns):
      rows.append({'arm': arm, 'prompt': i, **row})
      run.append_rows(path, rows[-1:])
  return rows


def table(
  rows: Sequence[dict[str, Any]], nodes: int, held: dict[str, int]
) -> str:
  """One line per arm; cold is the first half of the stream, warm the second.

  `kept` is the share of drafts accepted, `aligning` that of the seconds of
  rounds and alignment together; bytes are of adapters, optimiser and ring.
  """
  head = 'arm cold 95% warm 95% kept updates reverts loss aligning bytes'
  lines = [head.split()]
  for arm in ARMS:
    group = [row for row in rows if row['arm'] == arm]
    half = len(group) // 2
    line = [arm]
    for part in (group[:half], group[half:]):
      tokens, rounds = ([r[k] for r in part] for k in ('tokens', 'rounds'))
      low, high = metrics.interval(tokens, rounds)
      mean = metrics.mean_accepted(tokens, rounds)
      line += [f'{mean:.3f}', f'[{low:.3f},{high:.3f}]']
    total = lambda key, group=group: sum(row[key] for row in group)
    drafts = sum(w - 1 for row in group for w in row['walks'])
    losses = [r['loss'] for r in group if r['loss'] is not None]
    align_s = total('align_s')
    size = sum(held[k] for k in ('adapters', 'optimiser', 'ring'))
    lines.append(
      [
        *line,
        f'{drafts / max(total("rounds") * (nodes - 1), 1):.3f}',
        str(total('updates')),
        str(total('reverts')),
        f'{losses[0]:.3f}>{losses[-1]:.3f}' if losses else '-',
        f'{align_s / max(align_s + total("decode_s"), 1e-9):.3f}',
        '0' if arm == OFF else str(size),
      ]
    )
  return aligned(lines, left=None)


def measure() -> None:
  """Decodes what is missing, then prints the table and the memory."""
  decoder = api.load(_TARGET.value, 'ar', dtype='float32')
  texts = read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  prompts = [decoder.encode(turn) for turn in to_ask(texts)]
  bench = load_bench(decoder, max(map(len, prompts)))
  common = Settings(rate=_RATE.value, batch=_BATCH.value, first=_FIRST.value)
  held = held_bytes(bench, common)
  folder = pathlib.Path(_RUN_DIR.value)
  run.open_folder(
    folder, {'label': LABEL, **{flag.name: flag.value for flag in USED}}
  )
  rows = all_rows(decoder, bench, common, prompts, folder / ROWS)
  print(f'{LABEL}\n{table(rows, _NODES.value, held)}')
  print('bytes: ' + ', '.join(f'{k} {v}' for k, v in held.items()))


main = run.command(measure)


if __name__ == '__main__':
  app.run(main)
