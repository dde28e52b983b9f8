"""Trains a drafter on a corpus of its target, or a language model on texts.

  python -m experiments.train --gin_file=experiments/configs/train/dflash.gin

Writes a drafter's folder (config.json, model.safetensors) for
`specjax.load(..., drafter=FOLDER)`. The same command goes on from the latest
checkpoint; what it then computes is what an uninterrupted run would have.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import app, logging

import specjax
from experiments import drafters, logs, run
from experiments.held_out import HeldOut
from specjax import api, text
from specjax.method import Method
from specjax.models import transformer
from specjax.models.config import from_hf, to_hf
from specjax.training import loop
from specjax.training.batch import Fixed
from specjax.training.corpus import Corpus, open_corpus
from specjax.training.feed import Feed
from specjax.training.objectives.language_model import LanguageModel
from specjax.training.step import Optimizer, begin
from specjax.vocab.fr_spec import FrSpec
from specjax.weights.files import CONFIG, read_settings
from specjax.weights.leaves import cast
from specjax.weights.safetensors import save_target

DEFAULT = 'experiments/configs/train/dflash.gin'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """How texts become batches, see `training.feed.Shape`."""

  rows: int = 8
  length: int = 512
  micro: int = 1
  pack: bool = True
  features: bool = False


def train(
  *,
  run_dir: str | pathlib.Path,
  target: str,
  method: Callable[..., Method],
  drafter: Any,
  corpus: str,
  out: str,
  objective: Callable[..., Any],
  optimizer: Optimizer,
  rows: Rows = Rows(),
  pace: loop.Pace = loop.Pace(),  # noqa: B008
  held_out: HeldOut | None = None,
  vocab: FrSpec | None = None,
  dtype: str = 'bfloat16',
  stored: str = 'bfloat16',
  seed: int = 0,
  wandb: str | None = None,
) -> pathlib.Path:
  """Trains a drafter for a frozen target.

  Args:
    run_dir: for checkpoints and figures.
    target: a folder, or 'default'.
    method: a build function of `specjax.methods`; it decodes `held_out`.
    drafter: what a new one looks like (`experiments.shapes`), or the folder of
      one that is trained on, whose vocabulary map stays as it is.
    corpus: what `experiments.make_corpus` wrote with this target.
    out: the folder to write.
    objective: a class of `specjax.training.objectives`, its settings bound.
    optimizer: also says how many steps.
    rows: of a batch.
    pace: of logging, saving and looking at `held_out`.
    held_out: prompts that are decoded with the drafter.
    vocab: trains, and decodes, on a ranked list of tokens only, which is
      written beside the drafter. None: on that of the folder `drafter`, or on
      all.
    dtype: of compute; decoding has the target's own.
    stored: dtype of the written weights.
    seed: of weights and order.
    wandb: a project to report to.

  Raises:
    ValueError: before the first step, for parts that do not fit together.
  """
  run_dir, out = pathlib.Path(run_dir), pathlib.Path(out)
  plain = specjax.load(target, 'ar')
  weights, config = plain.params.target, plain.config
  start = drafters.begin(drafter, method, weights, seed)
  drafters.check_out(out, start.config)
  texts = open_corpus(corpus, config, plain.tokenizer, weights=weights)
  if rows.features:
    _check_layers(texts, start.method.drafter.taps)
  vocab = drafters.vocab_of(vocab, drafter)
  id_V = drafters.ids_of(vocab, start.method, config)
  look = None
  if held_out is not None:
    look = held_out.look(start.method, plain, vocab)
  state = fit_and_log(
    run_dir,
    {
      'target': target,
      'corpus': corpus,
      'method': api.name_of(method),
      'drafter': drafter,
      'dtype': dtype,
      'seed': seed,
    },
    optimizer,
    objective(drafter=start.method.drafter),
    start.init,
    Fixed(target=cast(weights, dtype), id_V=id_V),
    _feed(texts, rows, optimizer, seed),
    pace=pace,
    dtype=dtype,
    seed=seed,
    wandb=wandb,
    look=look,
  )
  trained = start.method, start.config, state.params
  drafters.save(out, *trained, stored, vocab, config.vocab)
  return out


def train_model(
  *,
  run_dir: str | pathlib.Path,
  model: str,
  corpus: str,
  out: str,
  optimizer: Optimizer,
  rows: Rows = Rows(),
  pace: loop.Pace = loop.Pace(),  # noqa: B008
  dtype: str = 'bfloat16',
  stored: str = 'bfloat16',
  seed: int = 0,
  wandb: str | None = None,
) -> pathlib.Path:
  """Trains a language model from random weights.

  Args:
    run_dir: for checkpoints and figures.
    model: a folder with config.json and a tokenizer, of which `out` gets a
      copy with weights.
    corpus: what `experiments.make_corpus --answers` wrote.
    out: the folder to write.
    optimizer: also says how many steps.
    rows: of a batch.
    pace: of logging and saving.
    dtype: of compute.
    stored: dtype of the written weights.
    seed: of weights and order.
    wandb: a project to report to.
  """
  folder, run_dir = pathlib.Path(model), pathlib.Path(run_dir)
  config = from_hf(read_settings(folder / CONFIG))
  drafters.check_out(pathlib.Path(out), to_hf(config))
  texts = open_corpus(corpus, None, text.load_tokenizer(folder))
  init = functools.partial(
    transformer.init,
    config,
    jax.random.key(seed),
    stacked=transformer.scans(None),
  )
  state = fit_and_log(
    run_dir,
    {'model': model, 'corpus': corpus, 'dtype': dtype, 'seed': seed},
    optimizer,
    LanguageModel(),
    init,
    Fixed(target=None),
    _feed(texts, rows, optimizer, seed),
    pace=pace,
    dtype=dtype,
    seed=seed,
    wandb=wandb,
  )
  _copy(folder, pathlib.Path(out))
  save_target(cast(state.params, stored), pathlib.Path(out))
  return pathlib.Path(out)


def fit_and_log(
  run_dir,
  settings,
  optimizer,
  objective,
  init,
  fixed,
  feed,
  *,
  pace,
  dtype,
  seed,
  wandb,
  look=None,
):
  """Opens the run's folder and its logs, and trains.

  `settings` decide the run's result, beside gin's; they are kept as text.
  """
  run.open_folder(run_dir, {name: str(x) for name, x in settings.items()})
  checkpoints = run_dir / 'checkpoints'
  with logs.opened(run_dir, loop.latest(checkpoints), wandb) as log:
    return loop.fit(
      checkpoints,
      optimizer,
      objective,
      lambda: begin(optimizer, objective, init(), seed),
      fixed,
      feed,
      pace=pace,
      dtype=dtype,
      log=log,
      look=look,
      title=run_dir.name,
    )


def _check_layers(corpus: Corpus, taps: Sequence[int]) -> None:
  """Raises ValueError where stored layers are not those a drafter reads."""
  kept = corpus.manifest['features']
  if kept is not None and taps and list(kept['layers']) != list(taps):
    raise ValueError(
      f"{corpus.folder} keeps the target's layers {list(kept['layers'])} and "
      f'the drafter reads {list(taps)}; make a corpus with '
      f'--taps={",".join(map(str, taps))}, or leave features=True out.'
    )


def _feed(corpus, rows: Rows, optimizer: Optimizer, seed: int) -> Feed:
  return Feed(
    corpus,
    rows.rows,
    rows.length,
    micro=rows.micro,
    pack=rows.pack,
    features=rows.features,
    seed=seed,
    steps=optimizer.steps,
  )


def _copy(source: pathlib.Path, out: pathlib.Path) -> None:
  """The files of a tokenizer."""
  out.mkdir(parents=True, exist_ok=True)
  if source.resolve() == out.resolve():
    return
  for name in (text.TOKENIZER, text.BYTES, text.SETTINGS, text.TEMPLATE):
    if (source / name).exists():
      (out / name).write_bytes((source / name).read_bytes())


def show(function: Callable[..., pathlib.Path] = train) -> None:
  """What the flags' settings train, and where it was written."""
  logging.set_verbosity(logging.WARNING)  # orbax tells of every file
  _, out = run.configured(function)
  print(f'wrote {out}')


main = run.command(show)


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import train as imported

  run.define_flags(DEFAULT)
  app.run(imported.main)
