"""Methods behind a limited vocabulary, and what they draft."""

from __future__ import annotations

import functools

import conformance_checks as checks
import jax
import methods_fixture as fx
import numpy as np

from specjax.decode.loop import decode
from specjax.methods import draft_model


@functools.cache
def case(name: str) -> fx.Case:
  """A method of the fixture; three names for an independent model.

  'follow' (coupled) and 'rejection' draft with other weights, 'self' with the
  target's: what it cannot draft is then what the cut took away.
  """
  if name not in ('follow', 'rejection', 'self'):
    return fx.make_case(name)
  rule = 'rejection' if name == 'rejection' else 'follow'
  build = functools.partial(
    draft_model.build,
    fx.CONFIG,
    nodes=5,
    rule=rule,
    coupled=name == 'follow',
    stacked=True,
  )
  if name != 'self':
    return fx.case_of(build(_config()))
  made = fx.case_of(build({**_config(), 'num_hidden_layers': 3}))
  return fx.Case(made.method, made.params.replace(drafter=fx.WEIGHTS))


def _config():
  return next(fx.drafter_configs(fx.CONFIG))


def wrapped(name: str, vocab) -> fx.Case:
  """That method behind a vocabulary."""
  inner = case(name)
  return fx.Case(*vocab.wrap(inner.method, inner.params))


def rounds(case: fx.Case, rows=None, **law):
  """One (state before, tree) per round, on the host."""
  rows = fx.rows_of(**law) if rows is None else rows
  state = fx.start(case, rows)
  while not np.all(state.done_B):
    before = fx.snapshot(state)
    state, records = decode(
      case.method,
      case.params,
      state,
      max_rounds=1,
      observe=checks.observe_tree,
    )
    tree, _ = jax.tree.map(lambda x: np.asarray(x)[0], records.values)
    yield before, tree


def drafts(case: fx.Case, **law):
  """(drafted tokens, best first, text so far) of every round and live row."""
  for state, tree in rounds(case, **law):
    context = state.context
    for b in np.flatnonzero(~state.done_B):
      tokens = tree.token_BN[b, 1:][tree.valid_BN[b, 1:]].tolist()
      yield tokens, context.tokens_BT[b, : context.length_B[b]].tolist()


def assert_same_trees(one: fx.Case, other: fx.Case, heat: float) -> None:
  """Equal bits in every round, hence equal texts."""
  law = {'temperature': heat}
  pairs = zip(rounds(one, **law), rounds(other, **law), strict=True)
  for (_, a), (_, b) in pairs:
    for field in ('token_BN', 'parent_BN', 'valid_BN', 'logq_BN'):
      np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
