"""The training loop: draw, step, look, save; goes on exactly where it was."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tqdm

from specjax.checks import check_whole
from specjax.training.batch import Batch, Fixed, Objective
from specjax.training.step import Optimizer, TrainState, update
from specjax.weights.leaves import leaves_by_path

KEEP = 2  # checkpoints


class Source(Protocol):
  """Where batches come from; its state is JSON."""

  def draw(self, params: Any) -> tuple[Batch, Sequence[int]]:
    """The next batches [M, ...] and the ids of the texts in them.

    `params` are the drafter's of this very step, for those who draft with them.
    """

  def get_state(self) -> Mapping[str, Any]:
    """Behind the last batch that was drawn."""

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes on from there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
  """How often what is done; steps are counted from 1."""

  log: int = 10
  save: int = 100
  look: int = 0  # at held-out prompts; 0: at the end only

  def __post_init__(self):
    check_whole(1, log=self.log, save=self.save)
    check_whole(0, look=self.look)


def fit(
  folder: pathlib.Path,
  optimizer: Optimizer,
  objective: Objective,
  begin: Callable[[], TrainState],
  fixed: Fixed,
  source: Source,
  *,
  pace: Pace,
  dtype: str,
  log: Callable[[dict[str, Any]], None],
  look: Callable[[Any, int], Mapping[str, float]] | None = None,
  title: str = 'train',
) -> TrainState:
  """Trains until the optimizer's steps are done.

  Args:
    folder: for checkpoints; the latest whole one in it is gone on from.
    optimizer: how many steps, and how large.
    objective: what is minimised.
    begin: makes the state before the first step.
    fixed: see `step.update`.
    source: of batches.
    pace: of logging, saving and looking.
    dtype: of compute.
    log: takes a row of figures: `step`, `loss`, `rate`, `grad_norm`, the
      objective's, and those of `look`.
    look: (params, step) to figures of held-out prompts.
    title: of the progress bar.

  Returns:
    The last state.

  Raises:
    ValueError: a loss that is not finite, with its step and texts. The
      checkpoint before it is kept.
    OSError: a checkpoint that cannot be written; earlier ones are whole.
  """
  with _manager(folder) as manager:
    state, done = begin(), 0
    if manager.latest_step() is not None:
      state, done = _restore(manager, state, source)
    bar = tqdm.tqdm(
      total=optimizer.steps, initial=done, desc=title, unit='step', disable=None
    )
    with bar:
      for step in range(done + 1, optimizer.steps + 1):
        batch, ids = source.draw(state.params)
        state, figures = update(
          optimizer, objective, state, fixed, batch, dtype=dtype
        )
        if not np.isfinite([figures['loss'], figures['grad_norm']]).all():
          _stop(manager, step, figures, ids)
        last = step == optimizer.steps
        row = {}
        if last or step % pace.log == 0:
          row |= {k: float(x) for k, x in figures.items()}
          bar.set_postfix(loss=f'{row["loss"]:.3f}', refresh=False)
        if look and (last or (pace.look and step % pace.look == 0)):
          row |= look(state.params, step)
        if row:
          log({'step': step, **row})
        # Behind the row: a run that goes on from here has written it.
        if last or step % pace.save == 0:
          _save(manager, step, state, source)
        bar.update()
  return state


def latest(folder: pathlib.Path) -> int:
  """The step of the last whole checkpoint in a folder; 0 without one."""
  with _manager(folder) as manager:
    return manager.latest_step() or 0


def _manager(folder: pathlib.Path) -> ocp.CheckpointManager:
  return ocp.CheckpointManager(
    pathlib.Path(folder).absolute(),
    item_handlers={
      'state': ocp.StandardCheckpointHandler(),
      'source': ocp.JsonCheckpointHandler(),
    },
    options=ocp.CheckpointManagerOptions(
      max_to_keep=KEEP, enable_async_checkpointing=False
    ),
  )


def _save(manager, step: int, state: TrainState, source: Source) -> None:
  args = ocp.args.Composite(
    state=ocp.args.StandardSave(_leaves(state)),
    source=ocp.args.JsonSave(dict(source.get_state())),
  )
  try:
    manager.save(step, args=args, force=True)
  except Exception as error:  # orbax wraps what the system says in many ways
    kept = [s for s in manager.all_steps() if s != step]
    raise OSError(
      f'the checkpoint of step {step} could not be written to '
      f'{manager.directory} ({error}); kept are those of steps '
      f'{kept or "(none)"}. Make room and give the same command again.'
    ) from error


def _restore(
  manager: ocp.CheckpointManager, like: TrainState, source: Source
) -> tuple[TrainState, int]:
  step, leaves = manager.latest_step(), _leaves(like)
  stored = manager.item_metadata(step).state.tree
  shapes = {name: tuple(stored[name].shape) for name in stored}
  wanted = {name: jnp.shape(x) for name, x in leaves.items()}
  if shapes != wanted:
    name = next(
      k for k in {**shapes, **wanted} if shapes.get(k) != wanted.get(k)
    )
    raise ValueError(
      f'the checkpoint of step {step} in {manager.directory} is of another '
      f'model or optimiser: it has {name} of shape {shapes.get(name)}, this '
      f'one of {wanted.get(name)}. Give another folder.'
    )
  args = ocp.args.Composite(
    state=ocp.args.StandardRestore(
      jax.tree.map(ocp.utils.to_shape_dtype_struct, leaves)
    ),
    source=ocp.args.JsonRestore(),
  )
  found = manager.restore(step, args=args)
  source.set_state(found['source'])
  _, structure = leaves_by_path(_raw(like))
  state = jax.tree_util.tree_unflatten(
    structure, [found['state'][name] for name in leaves]
  )
  return state.replace(key=jax.random.wrap_key_data(state.key)), step


def _leaves(state: TrainState) -> dict[str, Any]:
  return leaves_by_path(_raw(state))[0]


def _raw(state: TrainState) -> TrainState:
  """With the key as its words, which is how it is stored."""
  return state.replace(key=jax.random.key_data(state.key))


def _stop(manager, step: int, figures, ids: Sequence[int]) -> None:
  kept = manager.latest_step()
  raise ValueError(
    f'step {step} has loss {float(figures["loss"])} and gradient norm '
    f'{float(figures["grad_norm"])}; its texts are {sorted(set(ids))}. The '
    f'last checkpoint, of step {kept}, is kept in {manager.directory}: lower '
    'the rate or leave those texts out.'
  )
