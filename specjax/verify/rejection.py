"""Speculative sampling with residual, for chains drawn from the drafter."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
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
  """

  lossless: bool = True

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, round: Round
  ) -> Verdict:
    if round.sampling.all_greedy:
      return Follow()(tree, logits_BNV, round)
    p_BNV = jax.nn.softmax(sampling.warp(logits_BNV, round.sampling), axis=-1)
    q_BWV = jnp.exp(tree.draft.logq_BWC)
    drafts = q_BWV.shape[1]
    drawn_BW1 = tree.token_BN[:, 1:, None]
    p_x_BW = jnp.take_along_axis(p_BNV[:, :-1], drawn_BW1, axis=-1)[..., 0]
    q_x_BW = jnp.take_along_axis(q_BWV, drawn_BW1, axis=-1)[..., 0]
    root_B = round.context.length_B - 1
    chance_BW = _uniform(round.key_B, root_B + 1, drafts)
    # Strictly less: a uniform of 0 must not keep a token of probability 0.
    kept_BW = (chance_BW * q_x_BW < p_x_BW) & tree.valid_BN[:, 1:]
    accepted_B = jnp.sum(jnp.cumprod(kept_BW, axis=1), axis=1)

    # What is owed after the last kept draft; q is 0 where no draft was judged.
    owed_BV = _row(p_BNV, accepted_B)
    last_B = jnp.minimum(accepted_B, drafts - 1)
    judged_B = (accepted_B < drafts) & _row(tree.valid_BN[:, 1:], last_B)
    q_BV = jnp.where(judged_B[:, None], _row(q_BWV, last_B), 0)
    residual_BV = jnp.maximum(owed_BV - q_BV, 0)
    # Rounding can leave nothing where p and q agree; then p itself is owed.
    some_B1 = jnp.sum(residual_BV, axis=-1, keepdims=True) > 0
    residual_BV = jnp.where(some_B1, residual_BV, owed_BV)
    keys_B = sampling.position_keys(
      round.key_B, sampling.RESIDUAL, root_B + 1 + accepted_B
    )
    bonus_B = jax.vmap(jax.random.categorical)(keys_B, jnp.log(residual_BV))
    row_P = jnp.arange(tree.path_rows)
    length_B = (accepted_B + 1).astype(jnp.int32)
    return Verdict(
      path_BP=jnp.where(row_P < length_B[:, None], row_P, -1),
      length_B=length_B,
      bonus_B=bonus_B.astype(jnp.int32),
    )


def _row(x: Array, index_B: Array) -> Array:
  """x[b, index_b] for every b."""
  return jax.vmap(lambda x, i: x[i])(x, index_B)


def _uniform(key_B: Array, start_B: Array, count: int) -> Array:
  """float32[B, W]: one number per position, from its own key."""
  columns = [
    jax.vmap(jax.random.uniform)(
      sampling.position_keys(key_B, sampling.ACCEPT, start_B + i)
    )
    for i in range(count)
  ]
  return jnp.stack(columns, axis=1)
