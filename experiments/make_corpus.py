"""Makes a training corpus: prompts, and what a target answers to them.

  python -m experiments.make_corpus --prompts=train.jsonl --out=corpora/train \
    [--target=FOLDER] [--temperatures=0,1] [--features=taps --taps=1,3]

A drafter learns its target's own answers, so the target decodes every prompt
(field `prompt` of each line). With --answers the file's field `answer` is taken
instead, which is how a target itself gets its texts: then only its folder's
configuration and tokenizer are needed. The same command goes on where it was
interrupted; of the file in which that happened, nothing is kept.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import app, flags

import specjax
from experiments import run
from experiments.corpus_prompts import read_source
from experiments.prompts import as_messages, read_answers
from experiments.respond import Decoded, Given
from specjax import packaged
from specjax import text as text_lib
from specjax.checks import check_whole, number
from specjax.models.transformer import check_taps
from specjax.training import corpus_writer, fingerprints
from specjax.weights.safetensors import read_config

CAP = 512  # new tokens, unless told
NOT_OF_TEXTS = ('out', 'target', 'prompts')  # said elsewhere in the manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Making:
  """What a corpus is made with; `FLAGS` says what each setting is."""

  prompts: str
  out: str
  target: str = 'default'
  answers: bool = False
  limit: int | None = None
  max_new_tokens: int | None = None
  temperatures: tuple[float, ...] = (0.0,)
  top_p: float = 1.0
  seed: int = 0
  rows: int = 8
  chat: bool = True
  thinking: bool = False
  method: str = 'ar'
  drafter: str | None = None
  dtype: str = 'auto'
  taps: tuple[int, ...] | None = None  # None: no features
  shard: int = 256

  def __post_init__(self):
    check_whole(1, rows=self.rows, shard=self.shard)
    if self.max_new_tokens is not None:
      check_whole(1, max_new_tokens=self.max_new_tokens)
    check_whole(0, seed=self.seed)
    good = lambda t: number(t) and t >= 0
    if not self.temperatures or not all(map(good, self.temperatures)):
      raise ValueError(
        f'temperatures are {self.temperatures}; give one or more, 0 or above.'
      )
    if not number(self.top_p) or not 0 < self.top_p <= 1:
      raise ValueError(f'top_p is {self.top_p}; it must be in (0, 1].')
    if self.answers and self.taps is not None:
      raise ValueError(
        "features are the target's, and --answers loads none; leave one out."
      )


FLAGS = {
  'prompts': 'JSON lines: a path, a packaged set, or owner/name on the hub.',
  'out': 'Folder of the corpus.',
  'target': "Folder, hub id or 'default'; with --answers no hub id.",
  'answers': "Take the file's own answers; no target decodes.",
  'limit': 'Prompts to take.',
  'max_new_tokens': f'Where a response is cut; {CAP}, or whole with --answers.',
  'top_p': 'Of sampled responses.',
  'seed': 'Prompt i is decoded with seed + i.',
  'rows': 'Prompts decoded together.',
  'chat': "A prompt is a user's turn in the template; else raw text.",
  'thinking': 'Of the chat template.',
  'method': 'How responses are decoded; a lossless one changes none.',
  'drafter': "The method's drafter.",
  'dtype': 'Of weights and compute.',
  'shard': 'Texts per file, as many as a kill may cost.',
}


def make(making: Making) -> dict[str, Any]:
  """Makes a corpus, or what is missing of it; returns its manifest.

  Raises:
    ValueError: prompts or settings that cannot be; a folder that holds a corpus
      made otherwise; no room to write.
  """
  path, texts = read_source(making.prompts, making.limit)
  fill, facts = (_given if making.answers else _decoded)(making, path)
  config = fill.config if making.answers else fill.decoder.config
  tokenizer = (fill if making.answers else fill.decoder).tokenizer
  if tokenizer is None:
    raise ValueError(f'the target {making.target} has no tokenizer.')
  prompts = _encoded(making, tokenizer, texts)
  fitting = {i: p for i, p in prompts.items() if len(p) < config.max_length}
  if not fitting:
    raise ValueError(
      f'no prompt of {path} leaves room for an answer in a context of '
      f'{config.max_length}.'
    )
  settings = dataclasses.asdict(making) | facts.pop('settings')
  facts |= {
    'template': {
      'name': making.target,
      'fingerprint': fingerprints.template_fingerprint(tokenizer),
    },
    'prompts': {
      'name': path.name,
      'fingerprint': fingerprints.texts_fingerprint(prompts),
      'too_long': [i for i in prompts if i not in fitting],
    },
    'settings': {k: v for k, v in settings.items() if k not in NOT_OF_TEXTS},
  }
  with tqdm.tqdm(total=len(fitting), unit='text', file=sys.stderr) as bar:

    def begin(done: int) -> None:
      bar.n = bar.initial = done  # the estimate counts what is made now

    return corpus_writer.write(
      pathlib.Path(making.out).expanduser(),
      json.loads(json.dumps(facts)),
      plan(fitting, making.shard, making.seed),
      lambda ids: fill(fitting, ids, bar.update),
      begin,
    )


def plan(
  prompts: Mapping[int, Sequence[int]], shard: int, seed: int
) -> dict[str, list[int]]:
  """Which prompts go into which file, in the order files are made.

  A file holds prompts of like length, so that rows need like room. Files are
  made in a drawn order: what is there of an unfinished corpus is no choice of
  short prompts, and the time left can be told from the time spent.
  """
  order = sorted(prompts, key=lambda i: (len(prompts[i]), i))
  parts = [order[i : i + shard] for i in range(0, len(order), shard)]
  drawn = np.random.default_rng(seed).permutation(len(parts)).tolist()
  return {f'{k:05d}.safetensors': parts[k] for k in drawn}


def _given(making: Making, path: pathlib.Path) -> tuple[Given, dict[str, Any]]:
  """The file's answers; facts of a corpus that no target wrote."""
  folder = packaged.target_folder(making.target)
  answers = read_answers(
    str(path), limit=making.limit, without='leave --answers out'
  )
  fill = Given(
    config=read_config(folder),
    tokenizer=text_lib.load_tokenizer(folder),
    answers=dict(enumerate(answers)),
    cap=making.max_new_tokens,
  )
  return fill, {
    'target': None,
    'features': None,
    'settings': {'answers': fingerprints.texts_fingerprint(answers)},
  }


def _decoded(
  making: Making, path: pathlib.Path
) -> tuple[Decoded, dict[str, Any]]:
  """The target's answers, and facts of the target."""
  decoder = specjax.load(
    making.target, making.method, making.drafter, dtype=making.dtype
  )
  config, taps = decoder.config, making.taps
  check_taps(taps or (), config.layers)
  fill = Decoded(
    decoder=decoder,
    cap=making.max_new_tokens or CAP,
    rows=making.rows,
    temperatures=making.temperatures,
    top_p=making.top_p,
    seed=making.seed,
    taps=taps,
  )
  features = None
  if taps is not None:
    widths = [len(taps) * config.width, config.width]
    features = {'dtype': 'bfloat16', 'layers': taps, 'widths': widths}
  return fill, {
    'target': {
      'name': making.target,
      'config': fingerprints.target_fingerprint(config),
      'weights': fingerprints.weights_fingerprint(decoder.params.target),
    },
    'features': features,
    'settings': {'dtype': decoder.dtype},
  }


def _encoded(making, tokenizer, texts: Sequence[str]) -> dict[int, list[int]]:
  """Prompts by number, with all that a template puts before the answer."""
  chat = lambda text: tokenizer.chat(
    as_messages(text), thinking=making.thinking
  )
  encode = chat if making.chat else tokenizer.encode
  return {i: list(encode(text)) for i, text in enumerate(texts)}


def _define_flags(values: flags.FlagValues) -> None:
  """One per setting; lists are written 0,1."""
  kinds = {
    'str': flags.DEFINE_string,
    'int': flags.DEFINE_integer,
    'float': flags.DEFINE_float,
    'bool': flags.DEFINE_boolean,
  }
  for field in dataclasses.fields(Making):
    if field.name in FLAGS:
      needed = field.default is dataclasses.MISSING
      define = kinds[field.type.removesuffix(' | None')]
      define(
        field.name,
        None if needed else field.default,
        FLAGS[field.name],
        flag_values=values,
        **({'required': True} if needed else {}),
      )
  flags.DEFINE_list(
    'temperatures', ['0'], 'Prompts take them in turn.', flag_values=values
  )
  flags.DEFINE_enum(
    'features', 'none', ['none', 'taps'], 'What to keep.', flag_values=values
  )
  flags.DEFINE_list(
    'taps', [], 'Layers to keep, as the drafter reads them.', flag_values=values
  )


_FLAGS = run.flag_values(__name__)
_define_flags(_FLAGS)


def from_flags() -> Making:
  """The flags' settings."""
  given = {name: getattr(_FLAGS, name) for name in FLAGS}
  if (_FLAGS.features == 'taps') != bool(_FLAGS.taps):
    raise ValueError('give --features=taps and --taps=LAYERS, or neither.')
  return Making(
    **given,
    temperatures=_numbers('temperatures', float),
    taps=_numbers('taps', int) or None,
  )


def _numbers(name: str, kind: type) -> tuple[Any, ...]:
  values = getattr(_FLAGS, name)
  try:
    return tuple(map(kind, values))
  except ValueError:
    raise ValueError(
      f'--{name} is {",".join(values)}; give numbers such as 0,1.'
    ) from None


def show() -> None:
  """Flags to `make`, and what there is then."""
  making = from_flags()
  try:
    manifest = make(making)
  except KeyboardInterrupt:
    sys.exit(f'interrupted; the same command goes on from {making.out}.')
  done = manifest['done']
  print(
    f'{done["samples"]} texts, {done["tokens"]} tokens, {done["wanted"]} of '
    f'them responses, {done["ended"]} ended; too long: '
    f'{len(manifest["prompts"]["too_long"])}; wrote {making.out}'
  )


main = run.command(show)


if __name__ == '__main__':
  app.run(main)
