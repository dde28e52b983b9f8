"""What a decode loop shows of its verifications, and a ring filled with it.

Letters: N positions, A tokens that the target rates highest, R rounds, P rows
of a path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.tree_ops import take_rows
from specjax.types import Array, Head, Records, TokenTree, Verdict, struct
from specjax.vocab.alignment import Draft, Ring, difficulty, push
from specjax.vocab.teacher_forced import Place


@struct
class Seen:
  """A round's accepted path, its root first; rows behind `length` are void."""

  id_BPA: Array  # int32, the target's best tokens for what follows each row
  p_BPA: Array  # float32, their probabilities at temperature 1
  length_B: Array  # int32, see `Verdict`


def observer(best: int) -> Callable[[TokenTree, Array, Verdict], Seen]:
  """An observer for `decode` that keeps the `best` likeliest tokens per row.

  Make it once: programs are compiled for this very object.
  """
  return functools.partial(_observe, best)


def _observe(
  best: int, tree: TokenTree, logits_BNV: Array, verdict: Verdict
) -> Seen:
  logits_BPV = take_rows(logits_BNV, jnp.maximum(verdict.path_BP, 0))
  p_BPV = jax.nn.softmax(logits_BPV.astype(jnp.float32), axis=-1)
  p_BPA, id_BPA = jax.lax.top_k(p_BPV, best)
  return Seen(id_BPA=id_BPA, p_BPA=p_BPA, length_B=verdict.length_B)


def forget(ring: Ring, before: Array) -> Ring:
  """Positions of texts before this one get probability 0: no loss."""
  old_N1 = (ring.example.text_N < before)[:, None]
  return ring.replace(p_NA=jnp.where(old_N1, 0, ring.p_NA))


def accepted_share(records: Records) -> Array:
  """float32[R]: the share of its drafts that each round kept, of row 0.

  nan behind the last round.
  """
  seen: Seen = records.values
  drafts = seen.id_BPA.shape[2] - 1
  there_R = jnp.arange(seen.length_B.shape[0]) < records.count
  share_R = (seen.length_B[:, 0] - 1) / max(drafts, 1)
  return jnp.where(there_R, share_R, jnp.nan)


def collect(
  draft: Draft,
  adapters,
  head: Head,
  ring: Ring,
  records: Records,
  text: Array,
  start: Array,
  end: Array,
) -> Ring:
  """Pushes the positions that a chunk of rounds has judged, of row 0.

  A row of a path at position i is judged by what the target says there about
  position i + 1. Rows whose next token a stop id or the cap has cut off are
  left out: the text does not hold what they were judged by.

  Args:
    draft: the drafter, for the difficulty of each position.
    adapters: with which it has drafted.
    head: its common rows. What is outside of these gets probability 0; rows
      that a sequence has of its own are not trained on.
    ring: its examples are `Place`s; at least as large as R x P.
    records: of `observer`.
    text: int32[], which text it is.
    start: int32[], its length before the chunk.
    end: int32[], and after it.
  """
  seen: Seen = records.values
  length_R = seen.length_B[:, 0]
  rounds, rows = length_R.shape[0], seen.id_BPA.shape[2]
  there_R = jnp.arange(rounds) < records.count
  step_R = jnp.where(there_R, length_R, 0)
  root_R = start - 1 + jnp.cumsum(step_R) - step_R
  row_P = jnp.arange(rows)
  position_RP = root_R[:, None] + row_P
  valid_RP = (row_P < step_R[:, None]) & (position_RP + 1 < end)
  flat = lambda x: x.reshape(rounds * rows, *x.shape[2:])
  id_NA, p_NA = flat(seen.id_BPA[:, 0]), flat(seen.p_BPA[:, 0])
  if head.id_V is not None:
    p_NA = jnp.where(jnp.isin(id_NA, head.id_V), p_NA, 0)
  position_N = flat(position_RP)
  text_N = jnp.full(position_N.shape, text, jnp.int32)
  example = Place(text_N=text_N, position_N=position_N)
  hard_N = difficulty(p_NA, draft(adapters, example, id_NA))
  return push(ring, example, id_NA, p_NA, hard_N, flat(valid_RP))
