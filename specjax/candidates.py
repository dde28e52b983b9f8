"""Candidates from a drafter's hidden states: one place for all drafters."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.ops import top_candidates as best_tokens
from specjax.ops import top_k
from specjax.sampling import warp
from specjax.types import Array, Candidates, Features, Head, Round


def top_candidates(
  hidden_BWD: Array,
  head: Head,
  round: Round,
  fanout: int | None,
  depth: int | Sequence[int],
  *,
  features: bool = False,
) -> Candidates:
  """The likeliest next tokens of each hidden state, best first.

  Scores are log-probabilities over the head's rows at temperature 1: a
  deterministic tree is not warped. `fanout=None` gives the row's own sampling
  law over all V tokens, in order of id; where every row is greedy that law is
  one token, and one is returned.

  Where `round.sharpness_P` is set and a row samples, drafts are coupled to the
  noise g that the target will be sampled with. The target takes
  argmax(log p + T g), p at temperature 1; so what is likely is what the drafter
  takes with the same g, and the score is log softmax((log q + T g) / s), s
  being the sharpness of the depth. With T to 0 that becomes the greedy score.
  The drafter's law is not cut by top-k or top-p: on the packaged model that was
  no better. The text does not change, see `verify.follow`; that the noise may
  be shared is the coupling of Daliri et al., arXiv:2408.07978, there for two
  autoregressive models.

  Args:
    hidden_BWD: normed, as the head reads them.
    head: the drafter's; `round.head` stands in for it where a wrapper set one.
    round: of the tree that is grown.
    fanout: candidates per row; at most the head's size are returned.
    depth: of the node that each row continues, one for all or one per row.
    features: also what a learned tree reads.
  """
  head = head if round.head is None else round.head
  if fanout is None and round.sampling.all_greedy:
    fanout = 1
  if fanout is None:
    return _law(hidden_BWD, head, round)
  fanout = min(fanout, head.size)
  coupled = round.sharpness_P is not None and not round.sampling.all_greedy
  if head.own_BVD is None and not coupled and not features:
    row_BWC, logq_BWC = best_tokens(hidden_BWD, head.rows_VD, fanout)
    return Candidates(_tokens(head, row_BWC), logq_BWC)
  logits_BWV = _logits(hidden_BWD, head)
  score_BWV = logits_BWV
  if coupled:
    score_BWV = _coupled(logits_BWV, head, round, depth)
  score_BWV = jax.nn.log_softmax(score_BWV, axis=-1)
  logq_BWC, row_BWC = top_k(score_BWV, fanout, vocab=True)
  extra = None
  if features:
    plain_BWV = jax.nn.log_softmax(logits_BWV, axis=-1)
    log_BWV = jnp.maximum(plain_BWV, jnp.finfo(jnp.float32).min)  # 0 x -inf
    extra = Features(
      hidden_BWD=hidden_BWD,
      entropy_BW=-jnp.sum(jnp.exp(plain_BWV) * log_BWV, axis=-1),
      logq_BWC=jnp.take_along_axis(plain_BWV, row_BWC, axis=-1),
    )
  return Candidates(_tokens(head, row_BWC), logq_BWC, extra)


def _logits(hidden_BWD: Array, head: Head) -> Array:
  """float32[B, W, rows]: the common rows, then the sequence's own."""
  dot = lambda spec, rows: jnp.einsum(
    spec, hidden_BWD, rows, preferred_element_type=jnp.float32
  )
  logits_BWV = dot('bwd,vd->bwv', head.rows_VD)
  if head.own_BVD is None:
    return logits_BWV
  own_BWV = dot('bwd,bvd->bwv', head.own_BVD)
  own_BWV = jnp.where(head.own_id_BV[:, None] >= 0, own_BWV, -jnp.inf)
  return jnp.concatenate([logits_BWV, own_BWV], axis=-1)


def _ids(head: Head, batch: int) -> Array:
  """int32[B, rows]: each row's token, -1 for an empty one."""
  id_V = head.id_V
  if id_V is None:
    id_V = jnp.arange(head.rows_VD.shape[0], dtype=jnp.int32)
  id_BV = jnp.broadcast_to(id_V, (batch, len(id_V)))
  if head.own_id_BV is None:
    return id_BV
  return jnp.concatenate([id_BV, head.own_id_BV], axis=1)


def _tokens(head: Head, row_BWC: Array) -> Array:
  """int32[B, W, C]: the tokens of rows; an empty one's is 0, scored -inf."""
  if head.id_V is None and head.own_id_BV is None:
    return row_BWC.astype(jnp.int32)
  id_BV = _ids(head, row_BWC.shape[0])
  pick = jax.vmap(lambda id_V, row_WC: id_V[row_WC])
  return jnp.maximum(pick(id_BV, row_BWC), 0)


def _law(hidden_BWD: Array, head: Head, round: Round) -> Candidates:
  """The row's own sampling law over all of the target's tokens."""
  logits_BWV = _logits(hidden_BWD, head)
  logq_BWV = jax.nn.log_softmax(warp(logits_BWV, round.sampling), axis=-1)
  b, w, _ = logq_BWV.shape
  vocab = logq_BWV.shape[-1]
  if head.id_V is not None or head.own_id_BV is not None:
    vocab = round.noise_BPV.shape[-1]
    id_BV = _ids(head, b)
    id_BV = jnp.where(id_BV < 0, vocab, id_BV)  # out of range: not written
    put = lambda id_V, logq_WV: (
      jnp.full((w, vocab), -jnp.inf).at[:, id_V].set(logq_WV, mode='drop')
    )
    logq_BWV = jax.vmap(put)(id_BV, logq_BWV)
  token_V = jnp.arange(vocab, dtype=jnp.int32)
  return Candidates(jnp.broadcast_to(token_V, logq_BWV.shape), logq_BWV)


def _coupled(
  logits_BWV: Array, head: Head, round: Round, depth: int | Sequence[int]
) -> Array:
  """Logits that see the noise; a greedy row's are as they were."""
  b, w, _ = logits_BWV.shape
  at_W = np.broadcast_to(np.asarray(depth, int), (w,))
  noise_BWV = round.noise_BPV[:, at_W]
  if head.id_V is not None or head.own_id_BV is not None:
    id_BV = jnp.maximum(_ids(head, b), 0)
    noise_BWV = jax.vmap(lambda g_WV, id_V: g_WV[:, id_V])(noise_BWV, id_BV)
  heat_B11 = round.sampling.temperature_B[:, None, None]
  score_BWV = logits_BWV + heat_B11 * noise_BWV
  score_BWV = score_BWV / round.sharpness_P[at_W][:, None]
  return jnp.where(heat_B11 == 0, logits_BWV, score_BWV)
