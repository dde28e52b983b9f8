"""FR-Spec: drafts from the most frequent tokens only."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.drafters.trimmed_vocab import Trimmed, TrimmedVocab
from specjax.method import Method
from specjax.models.config import ModelConfig
from specjax.types import Head, Params
from specjax.vocab.ranks import chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrSpec:
  """Cuts a drafter's head to a ranked list, for `specjax.load(vocab=...)`.

  Zhao et al., arXiv:2502.14856. No training; drafts get cheaper by the rows
  that are not read, and shorter by the tokens that have none.

  Args:
    ranks: a file of `specjax.vocab.ranks`, a JSON list, or ids in order of
      rank.
    size: keep so many of them; None keeps the whole list. Multiples of 128
      suit accelerators.
  """

  ranks: Any
  size: int | None = None

  def check(self, method: Method, target_config: ModelConfig) -> None:
    """See `method.Vocabulary`."""
    check_drafter(method)
    chosen(self.ranks, self.size, target_config.vocab)

  def wrap(self, method: Method, params: Params) -> tuple[Method, Params]:
    """See `method.Vocabulary`; the rows are gathered here, once.

    A drafter with a pruned head of its own (EAGLE-3) keeps those of its rows
    whose tokens are in the list, and warns how many that are.

    Raises:
      ValueError: a drafter without a head, one that has no row for any of the
        list, or see `ranks.chosen`.
    """
    id_V = chosen(self.ranks, self.size, params.target.config.vocab)
    head = head_of(method, params)
    row_V = id_V
    if head.id_V is not None:
      own_V = np.asarray(head.id_V)
      asked, row_V = len(id_V), np.flatnonzero(np.isin(own_V, id_V))
      if not len(row_V):
        raise ValueError(
          f'none of the {asked} listed tokens is among the {len(own_V)} that '
          'this drafter has rows for; give another list.'
        )
      row_V = row_V[np.argsort(own_V[row_V])]
      id_V = own_V[row_V]
      if len(id_V) < asked:
        warnings.warn(
          f"the drafter's own head has {len(own_V)} rows: {len(id_V)} of the "
          f'{asked} listed tokens can be drafted.',
          stacklevel=2,
        )
    trimmed = Trimmed(
      inner=params.drafter,
      rows_VD=jnp.take(head.rows_VD, jnp.asarray(row_V), axis=0),
      id_V=jnp.asarray(id_V, jnp.int32),
    )
    method = dataclasses.replace(
      method, drafter=TrimmedVocab(inner=method.drafter)
    )
    return method, params.replace(drafter=trimmed)


def head_of(method: Method, params: Params) -> Head:
  """The rows that a vocabulary cuts.

  Raises:
    ValueError: the drafter has none.
  """
  head = method.drafter.head(params.drafter, params.target)
  if head is None:
    raise _no_head(method)
  return head


def check_drafter(method: Method) -> None:
  """`head_of`'s error where no weights are needed to see it."""
  if not method.drafter.tensors():
    raise _no_head(method)


def _no_head(method: Method) -> ValueError:
  return ValueError(
    f'the drafter of method {method.name!r} has no output rows to cut; leave '
    'vocab out, or take a method that drafts with a model.'
  )
