"""Speculative sampling with residual, for chains drawn from the drafter."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.tree_ops import take_rows
from specjax.types import Array, Round, TokenTree, Verdict
from specjax.verify.follow import Follow


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rejection:
  """Keeps draft x with probability min(1, p(x) / q(x)).

  At the first rejection the target's token comes from norm(max(p - q, 0)),
  after full acceptance from p. The emitted law is exactly p if the chain was
  drawn from the very q in `tree.draft` (Leviathan et al., arXiv:2211.17192,
  theorem 1; Chen et al., arXiv:2302.01318, algorithm 2). Both laws are warped
  alike; probabilities are float32.

  Every key belongs to a purpose and a position, and a position's tokens depend
  on its own keys only: what a rejected tail drew has no effect, so that the
  next round may draw it again. Without laws to judge by (greedy rows, a chain
  that was not sampled, no draft at all) `Follow` is the exact rule.
  """

  lossless: bool = True

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, round: Round
  ) -> Verdict:
    if round.sampling.all_greedy or tree.draft is None:
      return Follow()(tree, logits_BNV, round)
    _check(tree, logits_BNV)
    accepted_B, residual_BV = judge(
      jax.nn.softmax(sampling.warp(logits_BNV, round.sampling), axis=-1),
      jnp.exp(tree.draft.logq_BWC),
      tree.token_BN[:, 1:],
      tree.valid_BN[:, 1:],
      _uniform(round.key_B, round.context.length_B, tree.max_depth),
    )
    noise_B1V = sampling.noise(
      round.key_B,
      round.context.length_B + accepted_B,
      1,
      residual_BV.shape[-1],
      sampling.RESIDUAL,
    )
    bonus_B = jnp.argmax(jnp.log(residual_BV) + noise_B1V[:, 0], axis=-1)
    row_P = jnp.arange(tree.path_rows)
    length_B = accepted_B + 1
    return Verdict(
      path_BP=jnp.where(row_P < length_B[:, None], row_P, -1),
      length_B=length_B,
      bonus_B=bonus_B.astype(jnp.int32),
    )


def judge(
  p_BNV: Array, q_BWV: Array, drawn_BW: Array, valid_BW: Array, chance_BW: Array
) -> tuple[Array, Array]:
  """The rule itself, its randomness given.

  Args:
    p_BNV: the target's law at every node, N = W + 1.
    q_BWV: the law each draft was drawn from.
    drawn_BW: int32 drafts.
    valid_BW: bool; the chain ends before a draft that is none.
    chance_BW: numbers in [0, 1).

  Returns:
    How many drafts are kept, int32[B], and the law of the token that follows
    them, [B, V], not normalised.
  """
  drafts = q_BWV.shape[1]
  drawn_BW1 = drawn_BW[..., None]
  p_x_BW = jnp.take_along_axis(p_BNV[:, :-1], drawn_BW1, axis=-1)[..., 0]
  q_x_BW = jnp.take_along_axis(q_BWV, drawn_BW1, axis=-1)[..., 0]
  # Strictly less: a chance of 0 must not keep a token of probability 0.
  kept_BW = (chance_BW * q_x_BW < p_x_BW) & valid_BW
  accepted_B = jnp.sum(
    jnp.cumprod(kept_BW, axis=1, dtype=jnp.int32), axis=1, dtype=jnp.int32
  )
  # What is owed after the last kept draft; q is 0 where no draft was judged.
  owed_BV = take_rows(p_BNV, accepted_B)
  last_B = jnp.minimum(accepted_B, drafts - 1)
  judged_B = (accepted_B < drafts) & take_rows(valid_BW, last_B)
  q_BV = jnp.where(judged_B[:, None], take_rows(q_BWV, last_B), 0)
  residual_BV = jnp.maximum(owed_BV - q_BV, 0)
  # Rounding can leave nothing where p and q agree; then p itself is owed.
  some_B1 = jnp.sum(residual_BV, axis=-1, keepdims=True) > 0
  return accepted_B, jnp.where(some_B1, residual_BV, owed_BV)


def _check(tree: TokenTree, logits_BNV: Array) -> None:
  """Raises ValueError for what this rule cannot judge."""
  nodes, vocab = logits_BNV.shape[1:]
  if nodes != tree.path_rows:
    raise ValueError(
      f'a tree of {nodes} nodes and depth {tree.max_depth} is no chain; '
      'verify it with Follow.'
    )
  if tree.draft.logq_BWC.shape[-1] != vocab:
    raise ValueError(
      f'drafts come with laws over {tree.draft.logq_BWC.shape[-1]} tokens, the '
      f'target has {vocab}; give the whole vocabulary, -inf where it is cut.'
    )


def _uniform(key_B: Array, start_B: Array, count: int) -> Array:
  """float32[B, W]: one number per position, from its own key."""
  keys_at = lambda i: sampling.position_keys(
    key_B, sampling.ACCEPT, start_B + i
  )
  key_BW = jax.vmap(keys_at, out_axes=1)(jnp.arange(count))
  return jax.vmap(jax.vmap(jax.random.uniform))(key_BW)
