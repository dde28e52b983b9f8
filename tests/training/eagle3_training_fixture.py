"""Packed texts and a small EAGLE-3 drafter, for tests of its objective."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import packed_fixture as px
from eagle3_fixture import HF, TARGET, V

from specjax.methods import eagle3
from specjax.models import transformer
from specjax.training.batch import Fixed
from specjax.training.objectives.eagle3 import Eagle3

STEPS, DECAY, T = 3, 0.7, 14
TARGET_WEIGHTS = transformer.init(TARGET, jax.random.key(0), scale=0.4)
FIXED = Fixed(target=TARGET_WEIGHTS)
# (length, first wanted token) of the texts of each row; the rest is padding.
TEXTS = (((6, 2), (7, 3)), ((11, 5),))


def batch(seed=0):
  texts = px.random_texts(TEXTS, V, T, seed)
  # A hole within an answer.
  return texts.replace(wanted_BT=texts.wanted_BT.at[1, 8].set(False))


def noisy(shapes, seed=0):
  """Random values for every float, norms too: a norm left out then shows."""
  rng = np.random.default_rng(seed)
  draw = lambda x: jnp.asarray(rng.normal(0.3, 0.5, x.shape), jnp.float32)
  return jax.tree.map(
    lambda x: draw(x) if x.dtype == jnp.float32 else x, shapes
  )


def case(changes=(), switches=(), **options):
  """(objective, bound parameters)."""
  method = eagle3.build(TARGET, HF | dict(changes), nodes=9, depth=8, width=1)
  settings = dataclasses.replace(method.drafter.settings, **dict(switches))
  drafter = dataclasses.replace(method.drafter, settings=settings)
  params = noisy(drafter.init(jax.random.key(1), TARGET))
  options = {'steps': STEPS, 'decay': DECAY} | options
  objective = Eagle3(drafter=drafter, **options)
  return objective, drafter.bind(params, TARGET_WEIGHTS)


def spans(texts):
  """(row, slice) of every text."""
  text_BT = np.asarray(texts.text_BT)
  for b, row in enumerate(text_BT):
    for i in range(1, row.max() + 1):
      at = np.flatnonzero(row == i)
      yield b, slice(at[0], at[-1] + 1)
