"""Trains TAPS's scorer for a target and a DFlash drafter.

  python -m experiments.train_scorer --target=smollm2 --drafter=dflash \\
    --prompts=prompts.jsonl --out=scorer

Decodes the prompts with the pool that serving would choose from, keeps what the
target says of it beside the scorer (`traces.safetensors`), and trains on nine
tenths of the prompts; the same command goes on where it was interrupted. What
it writes is for `specjax.load(method='taps', drafter=FOLDER, scorer=FOLDER)`.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from absl import app, flags, logging

from experiments import drafters, logs, run
from experiments.prompts import read_prompts, to_ask
from experiments.trace_lots import Epochs, lot
from specjax import api
from specjax.checks import check_whole
from specjax.decoder import Decoder
from specjax.method import Method
from specjax.training import loop, step
from specjax.training.batch import Fixed
from specjax.training.collect import Plan
from specjax.training.objectives import taps
from specjax.training.trace_file import Traces, collect_to
from specjax.training.traces import Rounds
from specjax.trees.target_aware import TargetAware
from specjax.types import Array, Params
from specjax.verify.follow import Follow
from specjax.weights import scorer as scorers
from specjax.weights.files import CONFIG

TRACES = 'traces.safetensors'
_FLAGS = run.flag_values(__name__)
_here = lambda define: functools.partial(define, flag_values=_FLAGS)
_string, _bool = _here(flags.DEFINE_string), _here(flags.DEFINE_bool)
_integer, _float = _here(flags.DEFINE_integer), _here(flags.DEFINE_float)
_TARGET = _string('target', 'default', 'Folder, or default.')
_DRAFTER = _string('drafter', None, "Folder; default's, if absent.")
_PROMPTS = _string('prompts', None, 'JSON lines.', required=True)
_LIMIT = _integer('limit', None, 'Prompts at most.')
_CHAT = _bool('chat', True, "Prompts are a user's turns.")
_OUT = _string('out', None, 'Folder to write to.', required=True)
_NODES = _integer('nodes', 256, 'Rows verified in a traced round.')
_NEW = _integer('new_tokens', 256, 'Per prompt.')
_HEAT = _float('heat', 1.0, "Temperature of the target's laws.")
_POOL = _integer('pool', 48, 'Prefixes per length.')
_FANOUT = _integer('fanout', 64, 'Candidates per depth.')
_EPOCHS = _integer('epochs', 30, 'Over all rounds.')
_BATCH = _integer('batch', 64, 'Rounds per step.')
_RATE = _float('rate', 3e-3, 'The highest learning rate.')
_SEED = _integer('seed', 0, 'Of weights, split and order.')
_DTYPE = _string('dtype', 'auto', 'Of the target, see load.')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
  """AdamW with a cosine to 0; the defaults are the authors'."""

  epochs: int = 30
  batch: int = 64
  rate: float = 3e-3
  decay: float = 1e-4
  held_out: float = 0.1  # share of the prompts
  tree: int = 65  # rows of the tree whose accepted length is reported
  seed: int = 0

  def __post_init__(self):
    check_whole(1, epochs=self.epochs, batch=self.batch)
    self.optimizer(1)  # settings that cannot be are refused here

  def optimizer(self, steps: int) -> step.Optimizer:
    return step.Optimizer(
      rate=self.rate, steps=steps, warm_up=0.0, decay=self.decay
    )


def serving(decoder: Decoder, pool: int = 48, fanout: int = 64) -> Method:
  """TAPS on a loaded DFlash drafter."""
  drafter = decoder.method.drafter
  tree = TargetAware(
    nodes=2,
    depth=drafter.max_depth,
    shared_rows=drafter.shared_rows,
    pool=pool,
    fanout=fanout,
  )
  return Method(name='taps', drafter=drafter, tree=tree, verify=Follow())


def train_scorer(
  decoder: Decoder,
  method: Method,
  prompts: Sequence[Sequence[int]],
  out: str | pathlib.Path,
  plan: Plan,
  training: Training = Training(),
  objective: taps.Taps = taps.Taps(),  # noqa: B008
) -> dict[str, float]:
  """Collects, trains, and writes the scorer of the best validation loss.

  Args:
    decoder: any method on the target and the drafter.
    method: TAPS as it will serve, see `serving`.
    prompts: ids; at least two.
    out: folder, made where it is missing; also holds the traces.
    plan: of the traces.
    training: of the scorer.
    objective: what is minimised.

  Returns:
    `kl`, `bce` and `loss` of held-out rounds, `marginal_kl` of the drafter's
    own laws there, and the expected accepted drafts of trees of `tree` rows,
    `accepted` by the scorer and `marginal_accepted` by the drafter. Children of
    nodes that no round verified count as rejected in both.

  Raises:
    ValueError: before long work, for settings that cannot be, or that are not
      those that a scorer in `out` was trained with.
  """
  if len(prompts) < 2:
    raise ValueError(
      f'{len(prompts)} prompts were given; some are held out, so give 2 at '
      'least.'
    )
  out = pathlib.Path(out)
  drafters.check_out(out, scorers.settings(method, decoder.config))
  out.mkdir(parents=True, exist_ok=True)
  bar = functools.partial(
    tqdm.tqdm, unit='prompt', desc='traces', file=sys.stderr
  )
  params = Params(target=decoder.params.target, drafter=decoder.params.drafter)
  traces = collect_to(out / TRACES, method, params, prompts, plan, progress=bar)
  learn, check = split(traces, training)
  return fit(decoder, method, learn, check, out, training, objective)


def split(traces: Traces, training: Training) -> tuple[Rounds, Rounds]:
  """(rounds to learn from, rounds held out), by whole prompts.

  Raises:
    ValueError: one side would have no round.
  """
  order = np.random.default_rng(training.seed).permutation(traces.prompts)
  out = order[: max(1, round(training.held_out * traces.prompts))]
  held_B = np.isin(traces.prompt_B, out)
  if held_B.all() or not held_B.any():
    raise ValueError(
      f'of {len(held_B)} rounds of {traces.prompts} prompts, {held_B.sum()} '
      'would be held out; give more prompts or longer answers.'
    )
  some = lambda keep_B: jax.tree.map(lambda x: x[keep_B], traces.rounds)
  return some(~held_B), some(held_B)


def fit(
  decoder: Decoder,
  method: Method,
  learn: Rounds,
  check: Rounds,
  out: pathlib.Path,
  training: Training,
  objective: taps.Taps,
) -> dict[str, float]:
  """Epochs over shuffled rounds; the best on `check` is on disk."""
  made = {'objective': str(objective), **dataclasses.asdict(training)}
  epochs = Epochs(learn, training.batch, training.seed, made)
  optimizer = training.optimizer(training.epochs * epochs.steps)
  config, fixed = decoder.config, Fixed(target=decoder.params.target)

  def begin() -> step.TrainState:
    params = method.tree.init(jax.random.key(training.seed), config)
    return step.begin(optimizer, objective, params, training.seed)

  def look(params: Any, _: int) -> dict[str, float]:
    figures = evaluate(params, fixed, check, training, objective)
    if not epochs.best or figures['loss'] < epochs.best['loss']:
      epochs.best = figures
      scorers.save_scorer(params, out, method, config)
    return figures

  each, checkpoints = epochs.steps, out / 'checkpoints'
  with logs.opened(out, loop.latest(checkpoints)) as log:
    loop.fit(
      checkpoints,
      optimizer,
      objective,
      begin,
      fixed,
      epochs,
      pace=loop.Pace(log=each, save=each, look=each),
      dtype='float32',
      log=log,
      look=look,
      title='scorer',
    )
  if not (out / CONFIG).exists():
    raise ValueError(
      f'the best scorer is no longer in {out}; remove {checkpoints}, and the '
      'same command trains it again.'
    )
  return epochs.best


def evaluate(
  params: Any,
  fixed: Fixed,
  rounds: Rounds,
  training: Training,
  objective: taps.Taps,
) -> dict[str, float]:
  """Figures over all rounds, see `train_scorer`."""
  size, order = training.batch, np.arange(len(rounds.root_B))
  parts = [
    _figures(
      params, fixed, lot(rounds, order[i : i + size], size), training.tree - 1
    )
    for i in range(0, len(order), size)
  ]
  sums = jax.device_get(jax.tree.map(lambda *xs: sum(xs), *parts))
  means = {name: float(pair[0] / pair[1]) for name, pair in sums.items()}
  means['loss'] = means['kl'] + objective.reach * means['bce']
  return means


@functools.partial(jax.jit, static_argnames='nodes')
def _figures(
  params: Any, fixed: Fixed, rounds: Rounds, nodes: int
) -> dict[str, Array]:
  """Each float32[2]: a sum and its count."""
  scored, own = taps.scored(params, fixed, rounds), taps.marginal(rounds)
  true_BA = taps.target_reach(rounds).reshape(len(rounds.root_B), -1)
  real_B = rounds.seen_BPW[:, 0, 0]

  def accepted(logq_BTW: Array) -> Array:
    reach_BA = taps.reach_of(rounds, logq_BTW).reshape(true_BA.shape)
    _, best_BN = jax.lax.top_k(reach_BA, min(nodes, true_BA.shape[1]))
    sum_B = jnp.sum(jnp.take_along_axis(true_BA, best_BN, axis=1), axis=1)
    return jnp.stack([jnp.sum(sum_B, where=real_B), jnp.sum(real_B)])

  return {
    'kl': taps.divergence(rounds, *scored),
    'bce': taps.reach_loss(rounds, scored[0]),
    'marginal_kl': taps.divergence(rounds, *own),
    'accepted': accepted(scored[0]),
    'marginal_accepted': accepted(own[0]),
  }


def train_from_flags() -> None:
  """What the flags ask for."""
  logging.set_verbosity(logging.WARNING)  # orbax tells of every file
  texts = read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  decoder = api.load(
    _TARGET.value, 'dflash', _DRAFTER.value, dtype=_DTYPE.value
  )
  stop_ids, _ = decoder.ends(None, ())
  figures = train_scorer(
    decoder,
    serving(decoder, _POOL.value, _FANOUT.value),
    [decoder.encode(x) for x in to_ask(texts, _CHAT.value)],
    _OUT.value,
    Plan(
      nodes=_NODES.value,
      new_tokens=_NEW.value,
      stop_ids=tuple(dict.fromkeys(stop_ids)),
      heat=_HEAT.value,
    ),
    Training(
      epochs=_EPOCHS.value,
      batch=_BATCH.value,
      rate=_RATE.value,
      seed=_SEED.value,
    ),
  )
  print(
    f'{_OUT.value}: held-out KL {figures["kl"]:.4f} (the marginals '
    f'{figures["marginal_kl"]:.4f}), expected accepted drafts '
    f'{figures["accepted"]:.3f} ({figures["marginal_accepted"]:.3f})'
  )


main = run.command(train_from_flags)


if __name__ == '__main__':
  app.run(main)
