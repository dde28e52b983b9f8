"""Seconds of what EvoSpec's buffer adds to a round, in turns."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from experiments import timing
from specjax import tree_ops
from specjax.candidates import top_candidates
from specjax.decode.round import open_round, verify
from specjax.drafters import vocab_buffer
from specjax.method import Method
from specjax.types import Accepted, DecodeState, Head, Params

PASS = 'target'


def cost(
  method: Method, params: Params, state: DecodeState, repeats: int
) -> dict[str, tuple[float, float, float]]:
  """Seconds over those of the target's pass: median, least and most.

  Args:
    method: its drafter is an `EvolvingVocab`.
    params: the target as it is fastest here.
    state: of one sequence.
    repeats: turns.
  """
  config = params.target.config
  nodes, width = method.path_rows, config.width
  evolving, buffer = params.drafter, state.draft.buffer
  round = open_round(method, params, state)
  blank = jnp.zeros((1, nodes - 1), jnp.int32)
  tree = tree_ops.chain(tree_ops.root_token(state.context), blank, blank)
  logits_BPV = jax.random.normal(jax.random.key(0), (1, nodes, config.vocab))
  accepted = Accepted(
    token_BP=tree.token_BN,
    start_B=state.context.length_B - 1,
    length_B=jnp.asarray([nodes]),
    taps_BPE=None,
    bonus_B=jnp.asarray([1]),
    logits_BPV=logits_BPV,
  )
  rule = method.drafter.rule
  hidden_BWD = jnp.ones((1, 1, width))
  head = Head(evolving.rows_VD, evolving.id_V)
  both = head.replace(own_BVD=buffer.row_BID, own_id_BV=buffer.id_BI)
  best = jax.jit(lambda x, head: top_candidates(x, head, round, 1, 0))
  # The whole output, or XLA would leave out what is not asked for.
  check = jax.jit(lambda p, s: verify(method, p, s, tree, round))
  renew = jax.jit(
    lambda buffer, rows_VD, indices, accepted: vocab_buffer.update(
      buffer, rule, rows_VD, indices, accepted
    )
  )
  update = (buffer, evolving.inner.head, evolving.indices, accepted)
  jobs = {
    PASS: lambda: check(params, state),
    'update': lambda: renew(*update),
    'head': lambda: best(hidden_BWD, head),
    'head with buffer': lambda: best(hidden_BWD, both),
  }
  wait = lambda job: lambda: jax.block_until_ready(job())
  seconds = timing.interleaved(
    {name: wait(job) for name, job in jobs.items()}, repeats=repeats
  )
  pairs = {name: (s, seconds[PASS]) for name, s in seconds.items()}
  return {n: timing.ratio(*pair) for n, pair in pairs.items() if n != PASS}
