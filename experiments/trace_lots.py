"""Rounds of traces, as the training of a scorer takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checks import changes
from specjax.training.traces import Rounds
from specjax.types import Array


def lot(rounds: Rounds, index: np.ndarray, size: int) -> Rounds:
  """These rounds on the device; padded ones have nothing seen."""

  def pick(x_B: np.ndarray) -> Array:
    pad = [(0, size - len(index))] + [(0, 0)] * (x_B.ndim - 1)
    return jnp.asarray(np.pad(x_B[index], pad))

  return jax.tree.map(pick, rounds)


class Epochs:
  """Lots of rounds, shuffled every epoch; see `loop.Source`.

  `best` are figures of the best epoch so far, and go on with the rest.
  """

  def __init__(
    self, rounds: Rounds, size: int, seed: int, made: Mapping[str, Any]
  ):
    """`made` is what the training is made with, as JSON has it."""
    self._rounds, self._size, self._seed = rounds, size, seed
    self._count = len(rounds.root_B)
    self._made = {**made, 'rounds': self._count}
    self._step = 0
    self.steps = -(-self._count // size)  # of an epoch
    self.best: dict[str, float] = {}

  def draw(self, params: Any) -> tuple[Rounds, list[int]]:
    """The next lot, whatever the parameters, and its rounds' numbers."""
    del params
    epoch, at = divmod(self._step, self.steps)
    rng = np.random.default_rng((self._seed, epoch))
    index = rng.permutation(self._count)[at * self._size :][: self._size]
    self._step += 1
    rounds = lot(self._rounds, index, self._size)
    return jax.tree.map(lambda x: x[None], rounds), index.tolist()

  def get_state(self) -> Mapping[str, Any]:
    return {'step': self._step, 'best': self.best, 'made': self._made}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes on from there.

    Raises:
      ValueError: a state of other settings or of other rounds.
    """
    if wrong := changes(state['made'], self._made, lambda x, other: str(x)):
      raise ValueError(
        f'a scorer was trained here with other settings ({"; ".join(wrong)}); '
        'give another folder, or remove its checkpoints to begin again.'
      )
    self._step, self.best = state['step'], state['best']
