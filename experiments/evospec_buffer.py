"""What EvoSpec's buffer of rare tokens is worth, and what it costs.

  python -m experiments.evospec_buffer --target=FOLDER --ranks=RANKS \
    --prompts=pubmedqa_test.jsonl --prompts=medqa_test.jsonl \
    --sizes=2048,8192 --run_dir=runs/buffer [--indices=INDICES]

The target drafts for itself behind a cut head, so that every draft that is
refused is one that the cut has taken away. Each size runs with the list alone
and with each set of --sources, greedy, float32, one prompt at a time; texts
must be equal. Rows go to `rows.jsonl`, one per prompt, size and arm; the same
command goes on where it was interrupted.

Costs are measured in turns and told as ratios to the target's pass over one
round's rows: the update of the buffer, once a round, and the head of one draft
step, without and with the buffer's rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import tqdm
from absl import app, flags

from experiments import run
from experiments.evospec_cost import cost
from experiments.prompts import read_prompts, to_ask
from experiments.states import after_prompt, answer
from experiments.tables import aligned
from specjax import api, metrics
from specjax.decode.loop import decode
from specjax.decoder import Decoder
from specjax.drafters.draft_model import DraftModel
from specjax.drafters.evolving_vocab import added_bytes
from specjax.inputs import make_rows
from specjax.method import Method
from specjax.models.transformer import restack
from specjax.rules import chain_parts
from specjax.types import Params
from specjax.vocab.evospec import EvoSpec

STATIC = 'list'  # the arm without a buffer
ROWS = 'rows.jsonl'

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', None, 'Folder.', required=True, flag_values=_FLAGS
)
_RANKS = flags.DEFINE_string(
  'ranks', None, 'Ranked tokens.', required=True, flag_values=_FLAGS
)
_INDICES = flags.DEFINE_string(
  'indices', None, 'For sources d and e.', flag_values=_FLAGS
)
_PROMPTS = flags.DEFINE_multi_string(
  'prompts',
  ['gsm8k_test_20'],
  'Names or paths of prompt sets.',
  flag_values=_FLAGS,
)
_SIZES = flags.DEFINE_list(
  'sizes', ['2048', '8192'], 'Of the fixed list.', flag_values=_FLAGS
)
_BUFFER = flags.DEFINE_integer(
  'buffer', 512, 'Slots of the buffer.', flag_values=_FLAGS
)
_SOURCES = flags.DEFINE_list(
  'sources', ['abc'], 'One arm each, of abcde.', flag_values=_FLAGS
)
_LIMIT = flags.DEFINE_integer(
  'limit', 20, 'Prompts of each set.', flag_values=_FLAGS
)
_NEW = flags.DEFINE_integer(
  'max_new_tokens', 128, 'Tokens per answer.', flag_values=_FLAGS
)
_NODES = flags.DEFINE_integer(
  'nodes', 8, 'Rows verified, root included.', flag_values=_FLAGS
)
_REPEATS = flags.DEFINE_integer(
  'repeats', 20, 'Timed rounds; 0: no timing.', flag_values=_FLAGS
)
_RUN_DIR = flags.DEFINE_string(
  'run_dir', None, 'Results.', required=True, flag_values=_FLAGS
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
  """The target as its own drafter, and how texts are made."""

  method: Method
  params: Params
  decoder: Decoder
  pad_to: int
  new: int

  def arm(self, size: int, sources: str) -> tuple[Method, Params]:
    """The method behind a list, with or without a buffer."""
    vocab = EvoSpec(
      ranks=_RANKS.value,
      size=size,
      buffer=0 if sources == STATIC else _BUFFER.value,
      indices=_INDICES.value if set(sources) & set('de') else None,
      sources=None if sources == STATIC else sources,
    )
    return vocab.wrap(self.method, self.params)

  def start(self, method: Method, params: Params, ids: Sequence[int]):
    """The state after the prompt."""
    config = self.decoder.config
    rows = make_rows(
      [list(ids)],
      vocab=config.vocab,
      max_length=config.max_length,
      max_new_tokens=self.new,
      stop_ids=(*config.eos_ids, *self.decoder.tokenizer.eos_ids),
    )
    return after_prompt(method, params, rows, pad_to=self.pad_to)


def load_bench(target: str, nodes: int, new: int) -> Bench:
  """Weights are shared: the drafter is the target's own struct."""
  decoder = api.load(target, 'ar', dtype='float32')
  # Scanned layers: slower on CPU, and compiled in a tenth of the time.
  weights = restack(decoder.params.target, True)
  method = Method(
    name='draft_model',
    drafter=DraftModel(config=weights.config, stacked=True),
    **chain_parts(nodes - 1, 'follow', False),
  )
  params = Params(target=weights, drafter=weights)
  return Bench(method=method, params=params, decoder=decoder, pad_to=0, new=new)


def decode_cell(bench: Bench, method, params, ids) -> dict[str, Any]:
  """One prompt: what was emitted, in how many rounds, out of which tokens."""
  state, _ = decode(method, params, bench.start(method, params, ids))
  row = answer(state, len(ids))
  if hasattr(state.draft, 'tally'):
    names = [f.name for f in dataclasses.fields(state.draft.tally)]
    row |= {n[:-2]: int(getattr(state.draft.tally, n)[0]) for n in names}
  return row


def cells(bench: Bench, sets, path: pathlib.Path) -> list[dict[str, Any]]:
  """All rows; those that are there already are not made again."""
  rows = run.read_rows(path)
  have = {(r['set'], r['prompt'], r['size'], r['arm']) for r in rows}
  todo = [
    (name, i, ids, arm)
    for arm in arms()
    for name, prompts in sets.items()
    for i, ids in enumerate(prompts)
    if (name, i, *arm) not in have
  ]
  for arm, group in itertools.groupby(
    tqdm.tqdm(todo, unit='text', file=sys.stderr), key=lambda cell: cell[3]
  ):
    method, params = bench.arm(*arm)
    for name, i, ids, _ in group:
      row = decode_cell(bench, method, params, ids)
      where = {'set': name, 'prompt': i, 'size': arm[0], 'arm': arm[1]}
      rows.append({**where, **row})
      run.append_rows(path, rows[-1:])
  return rows


def arms() -> list[tuple[int, str]]:
  """(size of the list, sources or none) of every arm."""
  return list(
    itertools.product(map(int, _SIZES.value), [STATIC, *_SOURCES.value])
  )


def table(rows: Sequence[dict[str, Any]]) -> str:
  """One line per set, size and arm; the interval is over prompts."""
  groups: dict[tuple, list[dict[str, Any]]] = {}
  texts = {}
  for row in rows:
    groups.setdefault((row['set'], row['size'], row['arm']), []).append(row)
    texts.setdefault((row['set'], row['prompt']), row['ids'])
  head = 'set size arm accepted 95% rare held hits/round equal'
  lines = [head.split()]
  for (name, size, arm), group in sorted(groups.items()):
    column = lambda key, group=group: [row.get(key, 0) for row in group]
    tokens, rounds = column('tokens'), column('rounds')
    low, high = metrics.interval(tokens, rounds)
    total = {key: sum(column(key)) for key in ('token', 'rare', 'held', 'hit')}
    share = lambda a, b, total=total: (
      f'{total[a] / total[b]:.3f}' if total[b] else '-'
    )
    same = [row['ids'] == texts[name, row['prompt']] for row in group]
    lines.append(
      [
        name,
        str(size),
        arm,
        f'{metrics.mean_accepted(tokens, rounds):.2f}',
        f'[{low:.2f},{high:.2f}]',
        share('rare', 'token'),
        share('held', 'rare'),
        f'{total["hit"] / max(sum(rounds), 1):.3f}',
        f'{sum(same)}/{len(same)}',
      ]
    )
  return aligned(lines, left=None)


def measure() -> None:
  """Decodes what is missing, then prints the table, costs and memory."""
  bench = load_bench(_TARGET.value, _NODES.value, _NEW.value)
  stems = [pathlib.Path(source).stem for source in _PROMPTS.value]
  if len(set(stems)) < len(stems):
    raise ValueError(
      f'prompts are called {", ".join(stems)}, and rows are kept by these '
      'names; rename files that share one.'
    )
  sets = {
    pathlib.Path(source).stem: [
      bench.decoder.encode(turn)
      for turn in to_ask(read_prompts(source, limit=_LIMIT.value))
    ]
    for source in _PROMPTS.value
  }
  longest = max(len(ids) for prompts in sets.values() for ids in prompts)
  bench = dataclasses.replace(bench, pad_to=longest)
  for arm in arms():  # what cannot be is said before long work
    bench.arm(*arm)
  folder = pathlib.Path(_RUN_DIR.value)
  flags_used = (_TARGET, _RANKS, _INDICES, _PROMPTS, _BUFFER, _NEW, _NODES)
  settings = {flag.name: flag.value for flag in flags_used}
  run.open_folder(folder, settings)
  print(table(cells(bench, sets, folder / ROWS)))
  prompt = next(iter(sets.values()))[0]
  for size, sources in arms():
    if sources == STATIC:
      continue
    method, params = bench.arm(size, sources)
    state = bench.start(method, params, prompt)
    held = added_bytes(params.drafter, state.draft)
    parts = ', '.join(f'{k} {v}' for k, v in held.items())
    print(f'size {size}, sources {sources}: bytes {parts}')
    if not _REPEATS.value:
      continue
    params = params.replace(target=bench.decoder.params.target)
    for name, ratio in cost(method, params, state, _REPEATS.value).items():
      middle, low, high = ratio
      print(f'  {name}: {middle:.4f} [{low:.4f},{high:.4f}] target passes')


main = run.command(measure)


if __name__ == '__main__':
  app.run(main)
