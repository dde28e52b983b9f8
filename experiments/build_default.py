"""Builds the packaged default: a small target and drafters for it.

  python -m experiments.build_default --prompts=gsm8k_train.jsonl

`--prompts` is the train split of GSM8K as JSON lines with the fields `prompt`
and `answer`. Stages that are done are passed over, one that was interrupted
goes on from its last checkpoint. What is shipped is the folder `package`;
`--install` copies it into specjax/pretrained.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import gin
from absl import app, flags, logging

import specjax
from experiments import cards, make_corpus, run, train, train_opd, train_scorer
from experiments.prompts import read_prompts, to_ask
from specjax import api
from specjax.models.config import tiny, to_hf
from specjax.training.collect import Plan
from specjax.weights.files import CONFIG, WEIGHTS, write_json

_FLAGS = run.flag_values(__name__)
_PROMPTS = flags.DEFINE_string(
  'prompts', None, 'GSM8K train.', required=True, flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', 'runs/default', 'Folder to work in.', flag_values=_FLAGS
)
_ONLY = flags.DEFINE_list('only', [], 'Stages, by name.', flag_values=_FLAGS)
_INSTALL = flags.DEFINE_bool(
  'install', False, 'Copy into specjax/pretrained.', flag_values=_FLAGS
)
CONFIGS = run.ROOT / 'experiments/configs/train'
ANSWERED = 1920  # prompts
LEAST = 7432  # lines of prompts: configs/train holds out 32 from 7401 on
TIMES = 'times.json'
METHODS = {
  'caddtree': 'dflash',
  'ddtree': 'dflash',
  'dflash': 'dflash',
  'draft_model': 'draft_model',
  'eagle3': 'eagle3',
  'jetspec': 'jetspec',
  'taps': 'dflash',
  'treeflash': 'treeflash',
}
SCORERS = {'taps': 'taps'}


@dataclasses.dataclass(frozen=True)
class Work:
  """Where a build stands."""

  out: pathlib.Path
  prompts: str

  def __truediv__(self, name: str) -> str:
    return str(self.out / name)

  @property
  def package(self) -> pathlib.Path:
    return self.out / 'package'


def spec(work: Work) -> None:
  """The target's sizes, and its bytes as tokens: 256 mask, 257 end."""
  config = tiny(
    vocab=260,
    width=192,
    layers=6,
    q_heads=3,
    kv_heads=1,
    head_dim=64,
    mlp=704,
    max_length=1024,
    eos_ids=(257,),
    dtype='bfloat16',
  )
  folder = pathlib.Path(work / 'spec')
  folder.mkdir(parents=True, exist_ok=True)
  write_json(folder / 'config.json', to_hf(config))
  tokens = {'type': 'bytes', 'end': 257, 'mask': 256}
  write_json(folder / 'bytes.json', tokens)


def texts(work: Work) -> None:
  """Questions with their own answers."""
  make_corpus.make(
    make_corpus.Making(
      prompts=work.prompts,
      out=work / 'texts',
      target=work / 'spec',
      answers=True,
    )
  )


def corpus(work: Work) -> None:
  """The target's own answers, half of them greedy, half drawn."""
  make_corpus.make(
    make_corpus.Making(
      prompts=work.prompts,
      out=work / 'corpus',
      target=work / 'package/target',
      limit=ANSWERED,
      temperatures=(0.0, 1.0),
      max_new_tokens=160,
      rows=128,
    )
  )


def target(work: Work) -> None:
  _configured(work, 'target', train.train_model, 'model', 'corpus')


def taps(work: Work) -> None:
  """The scorer of TAPS, on traces of the trained DFlash."""
  decoder = specjax.load(
    work / 'package/target', 'dflash', work / 'package/dflash'
  )
  prompts = read_prompts(work.prompts, limit=64)
  figures = train_scorer.train_scorer(
    decoder,
    train_scorer.serving(decoder),
    [decoder.encode(turn) for turn in to_ask(prompts)],
    work / 'taps',
    Plan(nodes=128, new_tokens=128),
    train_scorer.Training(epochs=10),
  )
  folder = work.package / 'taps'
  folder.mkdir(parents=True, exist_ok=True)
  for name in (CONFIG, WEIGHTS):
    shutil.copy(pathlib.Path(work / 'taps', name), folder / name)
  write_json(pathlib.Path(work / 'taps.json'), figures)


def _drafter(name: str) -> Callable[[Work], None]:
  """A stage that trains a drafter as its gin file says."""
  paths = ('target', 'corpus')
  if name == 'dflash_opd':
    return lambda work: _configured(
      work, name, train_opd.train_opd, 'target', 'drafter'
    )
  return lambda work: _configured(work, name, train.train, *paths)


STAGES: dict[str, Callable[[Work], None]] = {
  'spec': spec,
  'texts': texts,
  'target': target,
  'corpus': corpus,
  **{
    name: _drafter(name)
    for name in ('draft_model', 'dflash', 'treeflash', 'eagle3', 'jetspec')
  },
  'taps': taps,
  'dflash_opd': _drafter('dflash_opd'),
}


def _configured(
  work: Work, name: str, function: Callable[..., Any], *paths: str
) -> None:
  """Calls a training as its gin file says, in this build's folders."""
  at = {
    'model': work / 'spec',
    'target': work / 'package/target',
    'corpus': work / ('texts' if name == 'target' else 'corpus'),
    'drafter': work / 'package/dflash',
  }
  where = f'{function.__module__.rpartition(".")[2]}.{function.__name__}'
  bound = {f'{where}.{key}': at[key] for key in paths}
  bound[f'{where}.out'] = str(work.package / name)
  if name != 'target':
    bound['HeldOut.prompts'] = work.prompts
  if name == 'treeflash':
    bound['shapes.Block.backbone'] = work / 'package/dflash'
  if name == 'dflash_opd':
    bound['Rolls.prompts'] = work.prompts
  run.parse(
    [str(CONFIGS / f'{name}.gin')], [f'{k} = {v!r}' for k, v in bound.items()]
  )
  gin.get_configurable(function)(run_dir=pathlib.Path(work / f'runs/{name}'))


def build(work: Work, only: list[str]) -> None:
  """Stages that are not done, all or those named, and how long each took."""
  if wrong := [name for name in only if name not in STAGES]:
    raise ValueError(f'there is no stage {wrong}; choose of {list(STAGES)}.')
  work.out.mkdir(parents=True, exist_ok=True)
  path = work.out / TIMES
  times = json.loads(path.read_text()) if path.exists() else {}
  for name, stage in STAGES.items():
    if (only and name not in only) or times.get(name, {}).get('done'):
      continue
    begun, before = time.time(), times.get(name, {}).get('seconds', 0)
    done = False
    try:
      stage(work)
      done = True
    finally:
      spent = round(before + time.time() - begun, 1)
      times[name] = {'seconds': spent, 'done': done}
      write_json(path, times)
    print(f'{name}: {spent:.0f} s', flush=True)


def pack(work: Work) -> None:
  """Says which method finds which drafter, and writes the cards."""
  times = json.loads((work.out / TIMES).read_text())
  work.package.mkdir(parents=True, exist_ok=True)
  for name in cards.WHAT:
    folder, extra = work.package / name, pathlib.Path(work / f'{name}.json')
    if (folder / 'config.json').exists():
      seconds = times.get(name, {}).get('seconds', 0)
      figures = json.loads(extra.read_text()) if extra.exists() else None
      record = pathlib.Path(work / f'runs/{name}')
      cards.write(folder, record, seconds, figures)
  there = lambda names: {
    method: name
    for method, name in names.items()
    if (work.package / name).is_dir()
  }
  write_json(work.package / 'drafters.json', there(METHODS))
  write_json(work.package / 'scorers.json', there(SCORERS))


def run_all() -> None:
  """What the flags ask for."""
  logging.set_verbosity(logging.WARNING)
  work = Work(pathlib.Path(_OUT.value), _PROMPTS.value)
  if len(read_prompts(work.prompts)) < LEAST:
    raise ValueError(
      f'{work.prompts} has fewer than {LEAST} lines; those from 7401 on are '
      'held out of all trainings of drafters.'
    )
  build(work, _ONLY.value)
  pack(work)
  lacking = [x for x in cards.WHAT if not (work.package / x).is_dir()]
  if _INSTALL.value:
    if lacking:
      raise ValueError(
        f'{work.package} has no {", ".join(lacking)}; make them before '
        '--install, which would take them from the package.'
      )
    shutil.copytree(work.package, api.PRETRAINED, dirs_exist_ok=True)
  said = f'lacks {", ".join(lacking)}' if lacking else 'is complete'
  print(f'{work.package} {said}.')


main = run.command(run_all)


if __name__ == '__main__':
  app.run(main)
