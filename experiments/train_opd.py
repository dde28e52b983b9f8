"""Draft-OPD: goes on training a DFlash drafter on what its own rounds showed.

  python -m experiments.train_opd \\
    --gin_file=experiments/configs/train/dflash_opd.gin

Before every step the drafter decodes some prompts with its target; what was
kept and what was rejected is what the step learns from (Lei, Li et al.,
arXiv:2605.29343). The same command goes on from the latest checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import app

import specjax
from experiments import drafters, run
from experiments.held_out import HeldOut
from experiments.prompts import read_prompts, to_ask
from experiments.train import fit_and_log, show
from specjax import api
from specjax.checks import check_whole
from specjax.method import Method
from specjax.training import loop
from specjax.training.batch import Fixed
from specjax.training.rollout import opd_batches
from specjax.training.step import Optimizer
from specjax.vocab.fr_spec import FrSpec
from specjax.weights.leaves import cast

DEFAULT = 'experiments/configs/train/dflash_opd.gin'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rolls:
  """What is decoded for a step."""

  prompts: str  # JSON lines
  limit: int | None = None
  per_step: int = 32  # prompts
  rows: int = 32  # decoded together
  micro: int = 8  # learned from together
  new_tokens: int = 128
  longest: int = 512  # tokens of a prompt; longer ones are left out
  chat: bool = True

  def __post_init__(self):
    check_whole(1, per_step=self.per_step, rows=self.rows, micro=self.micro)
    check_whole(1, longest=self.longest)
    check_whole(2, new_tokens=self.new_tokens)
    if self.per_step % self.rows or self.per_step % self.micro:
      raise ValueError(
        f'per_step is {self.per_step}, rows {self.rows} and micro '
        f'{self.micro}; give a per_step that both divide.'
      )


class Rollouts:
  """Batches that the drafter of the step writes itself; see `loop.Source`."""

  def __init__(
    self,
    rolls: Rolls,
    method: Method,
    fixed: Fixed,
    prompts: Sequence[Sequence[int]],
    stop_ids: Sequence[int],
    seed: int,
  ):
    self._rolls, self._method, self._fixed = rolls, method, fixed
    self._stop_ids, self._seed, self._step = stop_ids, seed, 0
    self._prompts = [p for p in prompts if len(p) <= rolls.longest]
    if len(self._prompts) < rolls.per_step:
      raise ValueError(
        f'{len(self._prompts)} of {len(prompts)} prompts have at most '
        f'{rolls.longest} tokens; a step takes {rolls.per_step}.'
      )
    room = fixed.target.config.max_length - rolls.new_tokens
    if max(map(len, self._prompts)) > room:
      raise ValueError(
        f'longest is {rolls.longest}; the target has room for prompts of '
        f'{room} tokens with {rolls.new_tokens} new ones. Lower one of them.'
      )

  def draw(self, params: Any) -> tuple[Any, list[int]]:
    per_step = self._rolls.per_step
    per_epoch = len(self._prompts) // per_step
    epoch, at = divmod(self._step, per_epoch)
    order = np.random.default_rng((self._seed, epoch)).permutation(
      len(self._prompts)
    )
    ids = order[at * per_step : (at + 1) * per_step].tolist()
    batches, _ = opd_batches(
      self._method,
      self._fixed,
      params,
      [self._prompts[i] for i in ids],
      rows=self._rolls.rows,
      micro=self._rolls.micro,
      new_tokens=self._rolls.new_tokens,
      stop_ids=self._stop_ids,
      pad_to=max(map(len, self._prompts)),
      seed=self._step,
    )
    self._step += 1
    return batches, ids

  def get_state(self) -> Mapping[str, Any]:
    return {'step': self._step}

  def set_state(self, state: Mapping[str, Any]) -> None:
    self._step = state['step']


def train_opd(
  *,
  run_dir: str | pathlib.Path,
  target: str,
  method: Callable[..., Method],
  drafter: str,
  out: str,
  objective: Callable[..., Any],
  optimizer: Optimizer,
  rolls: Rolls,
  pace: loop.Pace,
  held_out: HeldOut | None = None,
  vocab: FrSpec | None = None,
  dtype: str = 'float32',
  stored: str = 'bfloat16',
  seed: int = 0,
  wandb: str | None = None,
) -> pathlib.Path:
  """Post-trains a drafter.

  Args:
    run_dir: for checkpoints and figures.
    target: a folder, or 'default'.
    method: `methods.dflash.build`.
    drafter: the folder of a trained DFlash.
    out: the folder to write.
    objective: `objectives.draft_opd.DraftOpd`, its settings bound.
    optimizer: also says how many steps.
    rolls: what is decoded for a step.
    pace: of logging, saving and looking.
    held_out: prompts that are decoded with the drafter.
    vocab: a ranked list of tokens to draft from; None: the drafter's own.
    dtype: of compute and of the rollouts.
    stored: dtype of the written weights.
    seed: of the order.
    wandb: a project to report to.

  Raises:
    ValueError: before the first step, for parts that do not fit together.
  """
  run_dir, out = pathlib.Path(run_dir), pathlib.Path(out)
  plain = specjax.load(target, 'ar')
  weights = plain.params.target
  start = drafters.begin(drafter, method, weights, seed)
  drafters.check_out(out, start.config)
  prompts = read_prompts(rolls.prompts, limit=rolls.limit)
  ids = [plain.encode(turn) for turn in to_ask(prompts, rolls.chat)]
  vocab = drafters.vocab_of(vocab, drafter)
  id_V = drafters.ids_of(vocab, start.method, plain.config)
  fixed = Fixed(target=cast(weights, dtype), id_V=id_V)
  stop_ids, _ = plain.ends(None, ())
  look = None
  if held_out is not None:
    look = held_out.look(start.method, plain, vocab)
  state = fit_and_log(
    run_dir,
    {
      'target': target,
      'method': api.name_of(method),
      'drafter': drafter,
      'dtype': dtype,
      'seed': seed,
    },
    optimizer,
    objective(drafter=start.method.drafter),
    start.init,
    fixed,
    Rollouts(rolls, start.method, fixed, ids, stop_ids, seed),
    pace=pace,
    dtype=dtype,
    seed=seed,
    wandb=wandb,
    look=look,
  )
  trained = start.method, start.config, state.params
  drafters.save(out, *trained, stored, vocab, plain.config.vocab)
  return out


main = run.command(functools.partial(show, train_opd))


if __name__ == '__main__':
  # Gin binds the imported module; the one that runs here is `__main__`.
  from experiments import train_opd as imported

  run.define_flags(DEFAULT)
  app.run(imported.main)
