"""Side by side with transformers on a CPU: tokens/s of each, in one run.

  python -m experiments.peers --target=smollm2 --methods=ar,lookup:8 \
    --prompts=GSM8K_TEST.jsonl --out=runs/peers.jsonl

Each prompt is decoded in turn by transformers' greedy `generate`, by its prompt
lookup, by its assisted generation where --assistant is given, and by methods of
this library, `ar` always among them: the same ids of the chat template, greedy,
float32, batch 1, one after the other on all cores. A whole call is timed, the
reading of the prompt included; every program runs once before. Settings of
transformers that have no flag here are its defaults.

A cell that `--out` holds already, of the same settings, versions and machine,
is not run again. Needs the extra `peers`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm
from absl import app, flags

from experiments import hf_generate, run, scoring
from experiments.hf_generate import GREEDY, Generate
from experiments.lineup import Variant, load_all
from experiments.measure import Bench, facts, warm_up
from experiments.peers_summary import as_markdown, summarise
from experiments.prompts import read_prompts, to_ask
from experiments.summary import PLAIN
from specjax import api, packaged
from specjax.checks import check_whole
from specjax.text import load_tokenizer
from specjax.training.fingerprints import texts_fingerprint
from specjax.weights.safetensors import read_config

Row = dict[str, Any]

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', None, 'Folder, or default.', flag_values=_FLAGS
)
_METHODS = flags.DEFINE_list(
  'methods',
  ['ar', 'lookup'],
  'Names, each as name or name:nodes.',
  flag_values=_FLAGS,
)
_DRAFTER = flags.DEFINE_multi_string(
  'drafter',
  [],
  "A method's, as METHOD=FOLDER; may be repeated.",
  flag_values=_FLAGS,
)
_ASSISTANT = flags.DEFINE_string(
  'assistant',
  None,
  "Folder of transformers' drafter, of the target's tokenizer.",
  flag_values=_FLAGS,
)
_LOOKUP = flags.DEFINE_integer(
  'prompt_lookup',
  10,
  "transformers' prompt_lookup_num_tokens.",
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
_SCORE = flags.DEFINE_bool(
  'score', False, 'Also count the right answers.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'JSON lines, gone on with.', flag_values=_FLAGS
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peers:
  """All generators, by label: theirs, then ours."""

  theirs: Mapping[str, Generate]
  bench: Bench
  warm: set[str] = dataclasses.field(default_factory=set)

  @property
  def labels(self) -> list[str]:
    return [*self.theirs, *self.bench.decoders]

  def cell(self, label: str, i: int) -> Row:
    """Decodes prompt i, timed, after what is not timed."""
    ids, clock = self.bench.prompts[i], time.perf_counter
    if label in self.theirs:
      if label not in self.warm:
        self.theirs[label](ids)
        self.warm.add(label)
      begun = clock()
      new = self.theirs[label](ids)
      row = {'seconds': clock() - begun, 'ids': new}
    else:
      part = range(i, i + 1)
      warm_up(self.bench, label, part)
      begun = clock()
      out = self.bench.decode(label, part)
      row = {'seconds': clock() - begun, 'ids': out.tokens[0]}
      row |= facts(label, self.bench.decoders[label])
      row['rounds'] = len(out.accepted[0])
    tokens = len(row['ids'])
    text = self.bench.decoders[PLAIN].tokenizer.decode(row['ids'])
    return row | {
      'prompt_tokens': len(ids),
      'tokens': tokens,
      'tokens_per_s': tokens / row['seconds'],
      'text': text,
    }


def peers() -> list[Row]:
  """A row per generator and prompt, those of an earlier start included.

  Raises:
    ValueError: names the setting that cannot be, before anything is decoded.
  """
  check_whole(1, max_new_tokens=_NEW.value, prompt_lookup=_LOOKUP.value)
  texts = read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  right = None
  if _SCORE.value:
    right = scoring.load(_PROMPTS.value, limit=_LIMIT.value)
  path = pathlib.Path(_OUT.value)
  old = run.read_rows(path)
  if any('differs_at' not in row for row in old):
    raise ValueError(f'{path} holds rows of another script; give another out.')
  who, settings = _load(texts)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = _measure_all(who, settings, texts, path, old)
  for row in rows if right else ():
    row['right'] = right(row['prompt'], row['text'])
  return rows


def _load(texts: Sequence[str]) -> tuple[Peers, Row]:
  """All generators, and the settings that rows repeat."""
  variants, drafters = list(map(_variant, _METHODS.value)), _drafters()
  device, theirs = run.device(), hf_generate.versions()
  target, assistant = _folders(device)
  decoders = load_all(variants, _TARGET.value, drafters, 'float32')
  plain = decoders[PLAIN]
  stop_ids, _ = plain.ends(None, ())
  settings = {
    'target': _TARGET.value,
    'methods': {label: repr(d.method) for label, d in decoders.items()},
    'drafters': drafters,
    'assistant': _ASSISTANT.value,
    'prompt_lookup': _LOOKUP.value,
    'prompt_set': _PROMPTS.value,
    'max_new_tokens': _NEW.value,
    'threads': device['cpus'],
    'versions': run.versions() | theirs,
    **device,
  }
  bench = Bench(
    decoders=decoders,
    prompts=list(map(plain.encode, to_ask(texts))),
    generate={'max_new_tokens': _NEW.value, 'pad_to': 0},
    seed=0,
    repeats=1,
    constants={},
  )
  peers = Peers(
    theirs=hf_generate.generators(
      target,
      assistant,
      new=_NEW.value,
      lookup=_LOOKUP.value,
      stop_ids=stop_ids,
      threads=device['cpus'],
    ),
    bench=bench,
  )
  return peers, json.loads(run.dumps(settings))  # as rows will be read


def _variant(entry: str) -> Variant:
  name, colon, nodes = entry.partition(':')
  if colon and not nodes.isdecimal():
    raise ValueError(f'methods holds {entry!r}; give name or name:nodes.')
  build = api.build_of(name)
  if colon:
    build = functools.partial(build, nodes=int(nodes))
  return Variant(label=name, method=build)


def _drafters() -> dict[str, str]:
  found = {}
  for entry in _DRAFTER.value:
    name, _, folder = entry.partition('=')
    if not folder:
      raise ValueError(f'drafter is {entry!r}; give METHOD=FOLDER.')
    found[name] = folder
  return found


def _folders(device: Row) -> tuple[pathlib.Path, pathlib.Path | None]:
  """Of target and assistant, which both libraries can read here."""
  if device['platform'] != 'cpu':
    raise ValueError(
      f'jax computes on {device["platform"]} and transformers on the CPU; set '
      'JAX_PLATFORMS=cpu.'
    )
  given = [x for x in (_TARGET.value, _ASSISTANT.value) if x is not None]
  folders = list(map(packaged.target_folder, given))
  for folder in folders:
    if not folder.is_dir():
      raise ValueError(f'there is no folder {folder}.')
  if load_tokenizer(folders[0]) is None:
    raise ValueError(f'{folders[0]} has no tokenizer; prompts are text.')
  sizes = [read_config(folder).vocab for folder in folders]
  if sizes[-1] != sizes[0]:
    raise ValueError(
      f'the assistant has {sizes[-1]} tokens and the target {sizes[0]}; give '
      'one of the same tokenizer.'
    )
  return folders[0], folders[1] if len(folders) > 1 else None


def _measure_all(
  who: Peers,
  settings: Row,
  texts: Sequence[str],
  path: pathlib.Path,
  old: Sequence[Row],
) -> list[Row]:
  """All rows of these settings, theirs first; what is new goes to the file."""
  cell = lambda row: tuple(row[k] for k in ('label', 'prompt', 'asked'))
  same = lambda row: all(row.get(k) == v for k, v in settings.items())
  have = {cell(row): row for row in old if same(row)}
  rows = []
  total = len(texts) * len(who.labels)
  with tqdm.tqdm(total=total, file=sys.stderr, unit='cell') as bar:
    for i, text in enumerate(texts):
      asked = texts_fingerprint([text])
      for label in turns(who.labels, i):
        key = {'label': label, 'prompt': i, 'asked': asked}
        row = have.get(cell(key))
        if row is None:
          row = {**settings, **who.cell(label, i), **key}
          base = row if label == GREEDY else have[GREEDY, i, asked]
          at = first_difference(base['ids'], row['ids'])
          row |= {'equal': at is None, 'differs_at': at}
          run.append_rows(path, [row])
          have[cell(row)] = row
        rows.append(row)
        bar.update()
  return sorted(rows, key=lambda row: who.labels.index(row['label']))


def turns(labels: Sequence[str], i: int) -> list[str]:
  """The order for prompt i: what others are compared with, then these.

  They begin with another one each time, since what runs after a big job finds
  other things in the caches.
  """
  first, *others = labels
  at = i % len(others)
  return [first, *others[at:], *others[:at]]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
  """Where two texts begin to differ, be it that one ends; None if nowhere."""
  if a == b:
    return None
  pairs = enumerate(zip(a, b, strict=False))
  return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


main = run.command(lambda: print(as_markdown(summarise(peers()))))


if __name__ == '__main__':
  flags.mark_flags_as_required(['target', 'out'])
  app.run(main)
