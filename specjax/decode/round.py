"""One speculative round, the whole algorithm on one screen."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax import sampling as sampling_lib
from specjax.decode.emit import emit
from specjax.method import Method
from specjax.models import cache as kv
from specjax.models.layers import unembed
from specjax.models.transformer import forward
from specjax.tree_ops import take_rows, visible
from specjax.types import (
  Accepted,
  Array,
  DecodeState,
  Params,
  Round,
  TokenTree,
  Verdict,
)


def open_round(method: Method, params: Params, state: DecodeState) -> Round:
  """What is known before the target sees the tree."""
  noise_BPV = None
  if not state.sampling.all_greedy:
    noise_BPV = sampling_lib.noise(
      state.key_B,
      state.context.length_B,
      method.path_rows,
      params.target.config.vocab,
    )
  return Round(
    context=state.context,
    key_B=state.key_B,
    noise_BPV=noise_BPV,
    sampling=state.sampling,
  )


def draft(
  method: Method, params: Params, state: DecodeState, round: Round
) -> tuple[TokenTree, object]:
  """A tree below the last committed token, and the drafter's scratch."""
  root, scratch = method.drafter.begin(
    params.drafter, params.target, state.draft, round, method.tree.ask
  )
  expand = functools.partial(
    method.drafter.expand, params.drafter, params.target
  )
  return method.tree.grow(params.tree, expand, root, scratch, round)


def verify(
  method: Method, params: Params, state: DecodeState, tree: TokenTree, round
):
  """The target's pass over the tree: (its output, logits, verdict)."""
  root_B = state.context.length_B - 1  # also the rows its cache holds
  out = forward(
    params.target,
    tree.token_BN,
    root_B[:, None] + tree.depth_BN,
    state.cache,
    root_B,
    visible(tree),
    taps=method.drafter.taps,
  )
  logits_BNV = unembed(out.hidden_BTD, params.target.head)
  return out, logits_BNV, method.verify(tree, logits_BNV, round)


def speculative_round(
  method: Method, params: Params, state: DecodeState, observe=None
) -> tuple[DecodeState, object]:
  """Guess a tree, check it in a single target pass, keep a path.

  Returns:
    The state after the round and what `observe(tree, logits, verdict)` said.
  """
  round = open_round(method, params, state)
  tree, scratch = draft(method, params, state, round)
  out, logits_BNV, verdict = verify(method, params, state, tree, round)
  record = observe(tree, logits_BNV, verdict) if observe else None

  # Padding of the path reads the root; nothing looks at what it gives.
  index_BP = jnp.maximum(verdict.path_BP, 0)
  start_B = state.context.length_B - 1
  token_BP = take_rows(tree.token_BN, index_BP)
  rows, taps_BPE = out.rows, out.taps_BTE
  if not tree.is_chain:  # a chain is its own path
    rows = kv.select(rows, verdict.path_BP)
    taps_BPE = take_rows(taps_BPE, index_BP)
  accepted = Accepted(
    token_BP=token_BP,
    start_B=start_B,
    length_B=verdict.length_B,
    taps_BPE=taps_BPE,
    bonus_B=verdict.bonus_B,
  )
  alive_B = ~state.done_B
  state = state.replace(
    cache=kv.write(state.cache, rows, start_B),
    draft=method.drafter.commit(
      params.drafter, params.target, state.draft, scratch, accepted
    ),
    rounds_B=state.rounds_B + alive_B,
    walk_BR=_note(state, verdict),
  )
  # The path without the root, then the bonus.
  at_end_BP = jnp.arange(tree.path_rows) == verdict.length_B[:, None] - 1
  next_BP = jnp.roll(token_BP, -1, axis=1)
  emitted_BP = jnp.where(at_end_BP, verdict.bonus_B[:, None], next_BP)
  logits_BPV = None
  if state.logprob_BT is not None:
    logits_BPV = take_rows(logits_BNV, index_BP)
  return emit(state, emitted_BP, verdict.length_B, logits_BPV), record


def _note(state: DecodeState, verdict: Verdict) -> Array:
  """Acceptance lengths by round, written for rows that are alive."""
  column_B = jnp.where(state.done_B, state.walk_BR.shape[1], state.rounds_B)
  put = lambda x_R, i, v: x_R.at[i].set(v, mode='drop')
  return jax.vmap(put)(state.walk_BR, column_B, verdict.length_B)
