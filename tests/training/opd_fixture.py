"""Rounds of a tiny DFlash on a tiny target, for tests of Draft-OPD."""

from __future__ import annotations

import functools

import blocks_fixture as bx
import jax
import jax.numpy as jnp
import methods_fixture as fx

from specjax.training.batch import Fixed
from specjax.training.objectives.draft_opd import DraftOpd
from specjax.training.rollout import opd_batches
from specjax.training.step import Optimizer, begin, update

FIXED = Fixed(target=fx.WEIGHTS)
CASE = fx.make_case('dflash')
METHOD, DRAFTER = CASE.method, CASE.method.drafter
SLOTS = METHOD.tree.ask.depth
PROMPTS = ([1, 2, 3, 4, 1, 2, 3], [5, 6] * 9 + [5], [3, 9], [8, 8, 1])
NEW = 30


def params_of(seed=1):
  """Wide random parameters: laws far from uniform, no near-ties."""
  return bx.params_of(DRAFTER, seed)


def batches(params, fixed=FIXED, **options):
  """(micro-batches, figures), two rows in each."""
  options = {'rows': 4, 'micro': 2, 'new_tokens': NEW, 'pad_to': 20} | options
  return opd_batches(METHOD, fixed, params, PROMPTS, **options)


def whole(replay):
  """All rows of the micro-batches as one."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), replay)


def learn(params, objective, replay, *, steps, rate=3e-3, fixed=FIXED):
  """(parameters after so many steps on one batch, the last figures)."""
  optimizer = Optimizer(rate=rate, steps=steps)
  params = jax.tree.map(jnp.array, params)  # a step donates what it is given
  state = begin(optimizer, objective, params, 0)
  for _ in range(steps):
    state, figures = update(
      optimizer, objective, state, fixed, replay, dtype='float32'
    )
  return state.params, figures


@functools.cache
def trained():
  """Parameters that have learned one rollout by heart: drafts get kept."""
  params = params_of()
  objective, (replay, _) = DraftOpd(drafter=DRAFTER), batches(params)
  return learn(params, objective, replay, steps=60)[0]
