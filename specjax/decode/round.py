"""One speculative round: the whole algorithm."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax import sampling as sampling_lib
from specjax import sharding, tree_ops
from specjax.decode.emit import emit
from specjax.method import Method, SizedTree
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
  struct,
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
  sharpness_P = None
  if method.sharpness is not None and noise_BPV is not None:
    last = len(method.sharpness) - 1
    at_P = [min(p, last) for p in range(method.path_rows)]
    sharpness_P = jnp.asarray([method.sharpness[p] for p in at_P], jnp.float32)
  return Round(
    context=state.context,
    key_B=state.key_B,
    noise_BPV=noise_BPV,
    sampling=state.sampling,
    sharpness_P=sharpness_P,
    alive_B=~state.done_B,
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


@struct
class Checked:
  """What the target's pass over a tree leaves; shaped by paths, not nodes."""

  verdict: Verdict
  token_BP: Array  # int32, the path's tokens; padding reads the root
  rows: kv.KVCache
  taps_BPE: Array
  logits_BPV: Array  # float32; no work where nobody reads them
  record: object = None


def check(
  method: Method,
  params: Params,
  state: DecodeState,
  tree: TokenTree,
  round: Round,
  observe=None,
) -> Checked:
  """Verifies a tree and gathers what stands along the accepted path."""
  out, logits_BNV, verdict = verify(method, params, state, tree, round)
  checked = along(tree, out, logits_BNV, verdict)
  if observe is None:
    return checked
  return checked.replace(record=observe(tree, logits_BNV, verdict))


def along(tree: TokenTree, out, logits_BNV: Array, verdict: Verdict) -> Checked:
  """What a pass over a tree gave along the accepted path."""
  # Padding of the path reads the root; nothing looks at what it gives.
  index_BP = jnp.maximum(verdict.path_BP, 0)
  rows, taps_BPE = out.rows, out.taps_BTE
  if not tree.is_chain:  # a chain is its own path
    rows = kv.select(rows, verdict.path_BP)
    taps_BPE = take_rows(taps_BPE, index_BP)
  return Checked(
    verdict=verdict,
    token_BP=take_rows(tree.token_BN, index_BP),
    rows=rows,
    taps_BPE=taps_BPE,
    logits_BPV=take_rows(logits_BNV, index_BP),
  )


def check_sized(
  method: Method,
  params: Params,
  state: DecodeState,
  tree: TokenTree,
  round: Round,
  observe=None,
) -> Checked:
  """`check` of the first rows of a tree, as many as it chooses.

  The switch stands around the whole pass, since rows that are only masked cost
  as much as others. An observer sees trees of one size: what was not verified
  is no node, and its logits are zero.
  """

  def branch(nodes: int):
    def widened(part, logits_BNV, verdict):
      seen_N = jnp.arange(method.tree.nodes) < nodes
      whole = tree.replace(valid_BN=tree.valid_BN & seen_N)
      missing = ((0, 0), (0, method.tree.nodes - nodes), (0, 0))
      return observe(whole, jnp.pad(logits_BNV, missing), verdict)

    first = tree_ops.first(tree, nodes)
    return lambda: check(
      method, params, state, first, round, widened if observe else None
    )

  return jax.lax.switch(
    method.tree.choose(params.tree, tree, round),
    [branch(nodes) for nodes in method.tree.sizes],
  )


def speculative_round(
  method: Method, params: Params, state: DecodeState, observe=None
) -> tuple[DecodeState, object]:
  """Guess a tree, check it in a single target pass, keep a path.

  Returns:
    The state after the round and what `observe(tree, logits, verdict)` said.
  """
  round = open_round(method, params, state)
  tree, scratch = draft(method, params, state, round)
  sized = isinstance(method.tree, SizedTree)
  checked = (check_sized if sized else check)(
    method, params, state, tree, round, observe
  )
  state = commit(method, params, state, scratch, checked)
  return sharding.constrained(state), checked.record


def commit(
  method: Method,
  params: Params,
  state: DecodeState,
  scratch: object,
  checked: Checked,
) -> DecodeState:
  """The state with the accepted path in both caches and in the text."""
  verdict, start_B = checked.verdict, state.context.length_B - 1
  accepted = Accepted(
    token_BP=checked.token_BP,
    start_B=start_B,
    length_B=verdict.length_B,
    taps_BPE=checked.taps_BPE,
    bonus_B=verdict.bonus_B,
    logits_BPV=checked.logits_BPV,
  )
  alive_B = ~state.done_B
  state = state.replace(
    cache=kv.write(state.cache, checked.rows, start_B),
    draft=method.drafter.commit(
      params.drafter, params.target, state.draft, scratch, accepted
    ),
    rounds_B=state.rounds_B + alive_B,
    walk_BR=_note(state, verdict),
  )
  # The path without the root, then the bonus.
  row_P = jnp.arange(checked.token_BP.shape[1])
  at_end_BP = row_P == verdict.length_B[:, None] - 1
  next_BP = jnp.roll(checked.token_BP, -1, axis=1)
  emitted_BP = jnp.where(at_end_BP, verdict.bonus_B[:, None], next_BP)
  return emit(state, emitted_BP, verdict.length_B, checked.logits_BPV)


def _note(state: DecodeState, verdict: Verdict) -> Array:
  """Acceptance lengths by round, written for rows that are alive."""
  column_B = jnp.where(state.done_B, state.walk_BR.shape[1], state.rounds_B)
  put = lambda x_R, i, v: x_R.at[i].set(v, mode='drop')
  return jax.vmap(put)(state.walk_BR, column_B, verdict.length_B)
