"""A drafter that has learned one text by heart drafts whole blocks of it.

Training and decoding meet here: a feature, a position or a label that is off by
one in either of them is learned around on the one side and missed on the other.
"""

import functools

import jax.numpy as jnp
import methods_fixture as fx
import pytest

from specjax.training import step
from specjax.training.batch import Batch, Fixed
from specjax.training.objectives import block, coupled, draft_model, eagle3
from specjax.training.objectives import treeflash as treeflash_objective

pytestmark = pytest.mark.usefixtures('quick_compiles')

PROMPT = [1, 2, 3, 4, 1, 2, 3]
NEW = 24
FLOOR = 3.0  # tokens per round; what is learned by heart gives 5 or 6
# Options, objective and tokens of a round in which every draft is kept. Trees
# are small: only a law that is sure of its tokens reaches their full depth.
TRAINED = {
  'dflash': ({}, functools.partial(block.Block, anchors=NEW), 6),
  'jetspec': (
    {'nodes': 17, 'width': 3},
    functools.partial(block.Block, anchors=NEW, gamma=0.0),
    6,
  ),
  'treeflash': (
    {'nodes': 17},
    functools.partial(
      treeflash_objective.TreeFlash,
      anchors=NEW,
      kind='ce',
      frozen=(),
      marginal=1.0,
    ),
    6,
  ),
  'eagle3': (
    {'width': 1, 'nodes': 5, 'depth': 4},
    functools.partial(eagle3.Eagle3, steps=4),
    5,
  ),
  'draft_model': (
    {'nodes': 5, 'rule': 'follow'},
    draft_model.DraftModel,
    5,
  ),
}


@functools.cache
def plain():
  rows = fx.rows_of([PROMPT], new=NEW)
  return rows, fx.run(fx.built('ar'), rows).texts[0]


def case_of(name):
  changes = {'draft_vocab_size': fx.CONFIG.vocab}
  return fx.built(name, changes, **TRAINED[name][0])


def text_batch(text):
  ids = [*PROMPT, *text]
  whole = lambda x: jnp.asarray([[x]], jnp.int32)
  return Batch(
    token_BT=whole(ids),
    wanted_BT=whole([i >= len(PROMPT) for i in range(len(ids))]).astype(bool),
    text_BT=whole([1] * len(ids)),
    position_BT=whole(list(range(len(ids)))),
  )


def learned(case, objective, text, steps=250):
  """The case with a drafter that knows the text."""
  optimizer = step.Optimizer(rate=5e-3, steps=steps)
  state = step.begin(optimizer, objective, case.params.drafter, 0)
  fixed, batch = Fixed(target=case.params.target), text_batch(text)
  for _ in range(steps):
    state, figures = step.update(
      optimizer, objective, state, fixed, batch, dtype='float32'
    )
  assert jnp.isfinite(figures['loss'])
  return fx.Case(case.method, case.params.replace(drafter=state.params))


def mean(walks):
  """Of whole rounds: the last one may be cut by the end of what was learned."""
  return sum(walks[:-1]) / len(walks[:-1])


@pytest.mark.slow
@pytest.mark.parametrize('name', TRAINED)
def test_whole_blocks_of_a_text_known_by_heart(name):
  case = case_of(name)
  rows, text = plain()
  raw = fx.run(case, rows)
  objective = TRAINED[name][1](drafter=case.method.drafter)
  case = learned(case, objective, text)
  out = fx.run(case, rows)
  assert raw.texts == out.texts == [text]
  assert set(out.walks[0][:-1]) == {TRAINED[name][2]}
  # The floor sees a drafter that knows nothing, whose texts are right too.
  assert mean(out.walks[0]) >= FLOOR > mean(raw.walks[0])
  assert mean(raw.walks[0]) < 2


@pytest.mark.slow
def test_the_coupled_loss_too():
  """Trained for perturbed argmaxes, it keeps whole blocks at T = 1."""
  case = case_of('dflash')
  rows = fx.rows_of([PROMPT], new=NEW, temperature=1.0, seed=3)
  objective = coupled.Coupled(drafter=case.method.drafter, anchors=NEW)
  before = fx.run(case, rows)
  text = fx.run(fx.built('ar'), rows).texts[0]
  case = learned(case, objective, text)
  after = fx.run(case, rows)
  assert before.texts == after.texts == [text]
  assert mean(after.walks[0]) > mean(before.walks[0])
