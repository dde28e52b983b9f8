"""Compiled pieces of a round, to be timed one by one.

A piece runs several times within one program, as in decoding, where nothing is
dispatched between rounds. So that no run is dropped or moved out of the loop,
what it gives is carried, and what the next run reads depends on it: by a
comparison whose outcome XLA cannot know.

What some begin from, `by(f, *args)` gives: what f returns, or what is made up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from specjax import tree_ops
from specjax.decode import round as rounds
from specjax.method import Method, SizedTree
from specjax.models import cache as kv
from specjax.types import Array, DecodeState, Params, Round, TokenTree, struct

Job = Callable[[], None]
_run = lambda f, *args: jax.jit(f)(*args)


@struct
class Hole:
  """Where a cache was taken out of a state."""


def job(step: Callable, kept: Any, args: Any, count: int) -> Job:
  """Compiles `count` runs of a step; calling it runs them.

  Args:
    step: f(ok, kept, *args) -> (kept, out); `ok` is true and hangs on the run
      before, see `after`.
    kept: caches that are written in place; copied once.
    args: arrays that are only read.
    count: runs per call.
  """

  def run(kept, args):
    def body(_, carry):
      kept, out = carry
      return step(_finite(out), kept, *args)

    _, shape = jax.eval_shape(step, jnp.asarray(True), kept, *args)
    out = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return lax.fori_loop(0, count, body, (kept, out))

  program = jax.jit(run, donate_argnums=0).lower(kept, args).compile()
  held = [jax.tree.map(jnp.copy, kept)]

  def call():
    held[0], _ = jax.block_until_ready(program(held[0], args))

  return call


def after(ok: Array, tree: Any) -> Any:
  """The same arrays, known when `ok` is; keys and caches as they are."""

  def hold(x):
    if _is_cache(x) or _is_key(x):
      return x
    return jnp.where(ok, x, jnp.zeros_like(x))

  return jax.tree.map(hold, tree, is_leaf=_is_cache)


def whole_round(method: Method, params: Params, state: DecodeState):
  """(step, kept, args) of a round, always from the same state."""

  def step(ok, caches, params, rest):
    state = _begun(ok, _with(rest, caches))
    state, _ = rounds.speculative_round(method, params, state)
    return _caches(state), _outputs(state)

  return step, _caches(state), (params, _without(state))


def drafting(method: Method, params: Params, state: DecodeState):
  """(step, kept, args) of noise, drafter and tree."""

  def step(ok, caches, params, rest):
    state = _begun(ok, _with(rest, caches))
    round = rounds.open_round(method, params, state)
    tree, scratch = rounds.draft(method, params, state, round)
    made, state, _ = _handed_on(scratch, state)
    made = _new(made, (params, state, round))
    return _caches(state), (round.noise_BPV, tree, made)

  return step, _caches(state), (params, _without(state))


def building(method: Method, params: Params, state: DecodeState, by=_run):
  """(step, kept, args) of the tree alone.

  Its drafter answers from a record: the candidates that it gave to this very
  tree. What the tree asks with is carried, since a drafter would read it.
  """
  record = lambda params, state: _record(method, params, state)
  round, root, answers = by(record, params, state)

  def step(ok, kept, params, state, round, root, answers):
    state, root, answers = _begun(ok, state), *after(ok, (root, answers))
    round, asked = round.replace(context=state.context), []

    def replay(scratch, frontier):
      asked.append(frontier)
      return answers[len(asked) - 1], scratch

    tree, _ = method.tree.grow(params.tree, replay, root, (), round)
    return kept, (tree, asked)

  return step, (), (params, state, round, root, answers)


@dataclasses.dataclass(frozen=True)
class Drafted:
  """A round up to the target's pass."""

  round: Round
  tree: TokenTree
  made: Any  # the scratch without the drafter's caches,
  state: DecodeState  # which are here, as the scratch had them
  place: Mapping[int, int]  # of the scratch's caches among the state's


def drafted(method: Method, params: Params, state: DecodeState, by=_run):
  """A round's first half, as `Drafted`."""
  places = {}

  def run(params, state):
    round = rounds.open_round(method, params, state)
    tree, scratch = rounds.draft(method, params, state, round)
    made, state, place = _handed_on(scratch, state)
    places.update(place)
    return round, tree, made, state

  return Drafted(*by(run, params, state), places)


def _handed_on(scratch: Any, state: DecodeState):
  """(scratch without the drafter's caches, state with them, their places).

  A cache that the scratch only hands on must stay the one that is written in
  place; it is known by its shape, since it may have new rows.
  """
  caches, place = _caches(state), {}
  for i, x in enumerate(_caches(scratch)):
    free = (j for j in range(1, len(caches)) if j not in place.values())
    like = [j for j in free if caches[j].k_LBKSH.shape == x.k_LBKSH.shape]
    if like:
      place[i], caches[like[0]] = like[0], x
  order = iter(range(len(_caches(scratch))))
  made = jax.tree.map(
    lambda x: Hole() if _is_cache(x) and next(order) in place else x,
    scratch,
    is_leaf=_is_cache,
  )
  return made, _with(_without(state), caches), place


def checking(
  method: Method,
  params: Params,
  state: DecodeState,
  drafted: Drafted,
  nodes: int | None = None,
):
  """(step, kept, args) of the target's pass, its head and the rule.

  A tree that takes a size each round is checked as it chooses, path included,
  which the switch is around; so are the first `nodes` rows, where given.
  """

  def step(ok, kept, params, state, tree, round):
    state, tree = _begun(ok, state), after(ok, tree)
    if nodes is not None:
      tree = tree_ops.first(tree, nodes)
      return kept, rounds.check(method, params, state, tree, round)
    return kept, _checked(method, params, state, tree, round)

  return step, (), (params, state, drafted.tree, drafted.round)


def committing(
  method: Method, params: Params, state: DecodeState, drafted, by=_run
):
  """(step, kept, args) of the path, both caches and the text."""
  tree, sized = drafted.tree, isinstance(method.tree, SizedTree)
  state = drafted.state
  check = lambda *args: _checked(method, *args)
  found = by(check, params, state, tree, drafted.round)

  def step(ok, caches, params, rest, made, tree, found):
    state = _begun(ok, _with(rest, caches))
    if sized:
      path = found.replace(
        verdict=after(ok, found.verdict), taps_BPE=after(ok, found.taps_BPE)
      )
    else:
      out, logits_BNV, verdict = found
      out = out.replace(taps_BTE=after(ok, out.taps_BTE))
      path = rounds.along(tree, out, logits_BNV, after(ok, verdict))
    found_in = _caches(state)
    scratch = _with(made, [found_in[j] for j in drafted.place.values()])
    state = rounds.commit(method, params, state, scratch, path)
    return _caches(state), _outputs(state)

  args = (params, _without(state), drafted.made, tree, found)
  return step, _caches(state), args


def _checked(method: Method, params: Params, state: DecodeState, tree, round):
  sized = isinstance(method.tree, SizedTree)
  run = rounds.check_sized if sized else rounds.verify
  return run(method, params, state, tree, round)


def _record(method: Method, params: Params, state: DecodeState):
  """(round, root candidates, those of every expansion)."""
  round, answers = rounds.open_round(method, params, state), []
  root, scratch = method.drafter.begin(
    params.drafter, params.target, state.draft, round, method.tree.ask
  )

  def expand(scratch, frontier):
    found, scratch = method.drafter.expand(
      params.drafter, params.target, scratch, frontier
    )
    answers.append(found)
    return found, scratch

  method.tree.grow(params.tree, expand, root, scratch, round)
  return round, root, answers


def _new(tree: Any, given: Any) -> list[Array]:
  """Arrays of a tree that are new: what is passed on costs nothing."""
  old = {id(x) for x in jax.tree.leaves(given)}
  new = [x for x in jax.tree.leaves(tree) if id(x) not in old]
  return [x for x in new if not _is_key(x)]


def _finite(out: Any) -> Array:
  """bool[], true: no score, logit or id is +inf, which XLA cannot know."""
  firsts = [
    x.reshape(-1)[0].astype(jnp.float32) for x in jax.tree.leaves(out) if x.size
  ]
  return sum(firsts) != jnp.inf


def _begun(ok: Array, state: DecodeState) -> DecodeState:
  """The state, known when `ok` is; a round reads all else by its length."""
  length_B = jnp.where(ok, state.context.length_B, 1)
  return state.replace(
    context=state.context.replace(length_B=length_B),
    draft=after(ok, state.draft),
  )


_is_cache = lambda x: isinstance(x, kv.KVCache)
_is_hole = lambda x: isinstance(x, Hole)
_is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _caches(state: Any) -> list[kv.KVCache]:
  leaves = jax.tree.leaves(state, is_leaf=_is_cache)
  return [x for x in leaves if _is_cache(x)]


def _without(state: Any) -> Any:
  return jax.tree.map(
    lambda x: Hole() if _is_cache(x) else x, state, is_leaf=_is_cache
  )


def _with(rest: Any, caches: list[kv.KVCache]) -> Any:
  left = iter(caches)
  return jax.tree.map(
    lambda x: next(left) if _is_hole(x) else x, rest, is_leaf=_is_hole
  )


def _outputs(state: DecodeState) -> Any:
  """What a round wrote beside caches, without what it only passes on."""
  return (
    state.context,
    state.rounds_B,
    state.walk_BR,
    state.logprob_BT,
    _without(state).draft,
  )
