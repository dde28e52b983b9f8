"""Rounds of a decode loop, as blocks to be drafted once more.

Letters: R rounds of a text; K tokens drafted in a round: slot k stands k behind
the round's anchor, the last token that was committed before it.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from specjax.training.batch import Batch
from specjax.tree_ops import take_rows
from specjax.types import Array, struct


@struct
class Seen:
  """A round of a chain; of a row that is done it means nothing."""

  draft_BK: Array  # int32
  logp_BK: Array  # float32, the target's at temperature 1
  kept_B: Array  # int32, drafts that the target follows


@struct
class Rollout:
  """Finished texts and their rounds."""

  token_BT: Array  # int32, garbage from length on
  prompt_B: Array  # int32, tokens before the answer
  length_B: Array  # int32
  rounds_B: Array  # int32
  seen: Seen  # with a leading axis R


@struct
class Replay:
  """Texts, and blocks of the rounds that wrote them: a batch of `DraftOpd`.

  A round that does not exist has committed nothing.
  """

  batch: Batch  # one text a row
  anchor_BR: Array  # int32, places in the row
  kept_BR: Array  # int32, drafts that the target follows
  committed_BR: Array  # int32, kept + 1, or fewer where the text ended
  draft_BRK: Array  # int32
  logp_BRK: Array  # float32, the target's, behind the drafts before

  @property
  def live_BR(self) -> Array:
    return self.committed_BR > 0

  @property
  def label_BRK(self) -> Array:
    """int32: what the text holds in a slot; garbage behind the committed."""
    last = self.batch.token_BT.shape[1] - 1
    place_BRK = jnp.minimum(self.anchor_BR[..., None] + self._slot_K, last)
    return take_rows(self.batch.token_BT, place_BRK)

  @property
  def accepted_BRK(self) -> Array:
    """bool: drafts that were kept and are in the text."""
    count_BR = jnp.minimum(self.kept_BR, self.committed_BR)
    return self._slot_K <= count_BR[..., None]

  @property
  def committed_BRK(self) -> Array:
    """bool: those, and the target's correction behind them.

    The token behind a block that was kept whole is in no slot of it.
    """
    return self._slot_K <= self.committed_BR[..., None]

  @property
  def rejected_BRK(self) -> Array:
    """bool: the draft that the target did not follow, and all behind it.

    None where the text ended within what was kept: nothing was judged there.
    """
    judged_BR = self.live_BR & (self.committed_BR > self.kept_BR)
    return judged_BR[..., None] & (self._slot_K > self.kept_BR[..., None])

  @property
  def _slot_K(self) -> Array:
    return jnp.arange(1, self.draft_BRK.shape[2] + 1)


@functools.partial(jax.jit, static_argnames=('tokens', 'rounds'))
def plan(rollout: Rollout, key: Array, *, tokens: int, rounds: int) -> Replay:
  """Blocks to be drafted once more, from the anchors they were drafted from.

  The first anchor is the first token of the answer, which the prompt's pass
  gave; from there on `anchor + committed` is the next one. (The authors' code
  starts the first block at the prompt's last token, where no round was; that
  is not offered.)

  Args:
    rollout: finished texts.
    key: draws the rounds that stay where a text has more than `rounds`.
    tokens: size of the rows, at least the longest text.
    rounds: R of the result.
  """
  s = rollout.seen
  kept_BR, there = s.kept_B.T, s.kept_B.shape[0]
  live_BR = jnp.arange(there) < rollout.rounds_B[:, None]
  step_BR = jnp.where(live_BR, kept_BR + 1, 0)
  anchor_BR = rollout.prompt_B[:, None] + jnp.cumsum(step_BR, 1) - step_BR
  left_BR = rollout.length_B[:, None] - 1 - anchor_BR
  lot_BR = jnp.where(live_BR, jax.random.uniform(key, live_BR.shape), 2.0)
  _, pick_BR = lax.top_k(-lot_BR, min(rounds, there))
  pick_BR = jnp.sort(pick_BR, axis=1)  # live ones stand first, in order

  def chosen(x_BR):
    there_BR = live_BR.reshape(live_BR.shape + (1,) * (x_BR.ndim - 2))
    x_BR = take_rows(jnp.where(there_BR, x_BR, 0), pick_BR)
    pad = [(0, 0), (0, rounds - x_BR.shape[1])] + [(0, 0)] * (x_BR.ndim - 2)
    return jnp.pad(x_BR, pad)

  return Replay(
    batch=_texts(rollout, tokens),
    anchor_BR=chosen(anchor_BR),
    kept_BR=chosen(kept_BR),
    committed_BR=chosen(jnp.minimum(left_BR, step_BR)),
    draft_BRK=chosen(s.draft_BK.swapaxes(0, 1)),
    logp_BRK=chosen(s.logp_BK.swapaxes(0, 1)),
  )


def _texts(rollout: Rollout, tokens: int) -> Batch:
  token_BT = rollout.token_BT[:, :tokens]
  short = tokens - token_BT.shape[1]
  token_BT = jnp.pad(token_BT, ((0, 0), (0, short)))
  place_BT = jnp.broadcast_to(jnp.arange(tokens), token_BT.shape)
  there_BT = place_BT < rollout.length_B[:, None]
  return Batch(
    token_BT=jnp.where(there_BT, token_BT, 0),
    wanted_BT=there_BT & (place_BT >= rollout.prompt_B[:, None]),
    text_BT=there_BT.astype(jnp.int32),
    position_BT=place_BT,
  )
