"""Distillation of a small model: its loss by hand, and against decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import packed_fixture as px
import pytest

from specjax.drafters import draft_model
from specjax.models import config, transformer
from specjax.training import step, teacher
from specjax.training.batch import Fixed
from specjax.training.objectives.draft_model import DraftModel
from specjax.types import Ask

V, T = 16, 13
SMALL = config.tiny(vocab=V, width=12, layers=2, mlp=16, head_dim=4)
TARGET = config.tiny(vocab=V, width=16, layers=1, mlp=16, head_dim=4)
DRAFTER = draft_model.DraftModel(config=SMALL, stacked=False)
PARAMS = transformer.init(SMALL, jax.random.key(1), stacked=False, scale=0.4)
TARGET_WEIGHTS = transformer.init(TARGET, jax.random.key(0), scale=0.5)
FIXED = Fixed(target=TARGET_WEIGHTS)
FEW = jnp.asarray([0, 1, 3, 4, 6, 7, 9, 10, 12, 15], jnp.int32)
TEXTS = (((5, 2), (7, 3)), ((9, 4),))  # (length, first wanted) of each row

pytestmark = pytest.mark.usefixtures('quick_compiles')


def batch():
  texts = px.random_texts(TEXTS, V, T)
  # A text's first token is wanted, which nothing predicts.
  return texts.replace(wanted_BT=texts.wanted_BT.at[0, 5].set(True))


def laws(weights, token_T):
  """float64[T, V]: log-probabilities of one text read alone."""
  out = transformer.read(weights, jnp.asarray(token_T)[None])
  logits = np.asarray(out.hidden_BTD[0] @ weights.head.T, np.float64)
  return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def by_hand(fixed):
  """(sums by name, number) by a loop over tokens."""
  texts, number = batch(), 0
  sums = dict.fromkeys(('kl', 'tv', 'ce', 'acceptance', 'accuracy'), 0.0)
  ids = np.arange(V) if fixed.id_V is None else np.asarray(fixed.id_V)
  for b, row in enumerate(TEXTS):
    first = 0
    for n, _ in row:
      at = slice(first, first + n)
      token_T = np.asarray(texts.token_BT[b, at])
      logp_TV, logq_TV = (laws(w, token_T) for w in (TARGET_WEIGHTS, PARAMS))
      for t in range(n - 1):
        token = token_T[t + 1]
        if not texts.wanted_BT[b, first + t + 1] or token not in ids:
          continue
        number += 1
        q_V = np.zeros(V)
        q_V[ids] = np.exp(logq_TV[t, ids]) / np.exp(logq_TV[t, ids]).sum()
        p_V = np.exp(logp_TV[t])
        part = p_V[ids] / p_V[ids].sum()
        sums['kl'] += (part * np.log(part / q_V[ids])).sum()
        sums['tv'] += np.abs(p_V - q_V).sum() / 2
        sums['ce'] -= np.log(q_V[token])
        sums['acceptance'] += np.minimum(p_V, q_V).sum()
        sums['accuracy'] += p_V.argmax() == q_V.argmax()
      first += n
  return sums, number


@pytest.mark.parametrize('id_V', [None, FEW], ids=['all', 'few'])
def test_loss_by_hand(id_V):
  """Each term and figure by a loop in numpy, texts read alone.

  Catches a law of the token before or behind, a text that sees another, q and p
  exchanged, a smaller vocabulary that p or the divisor does not know of.
  """
  fixed = FIXED.replace(id_V=id_V)
  want, number = by_hand(fixed)
  for weights in ({}, {'kl': 0, 'tv': 1}, {'kl': 0.5, 'tv': 2, 'ce': 0.3}):
    objective = DraftModel(drafter=DRAFTER, **weights)
    ((loss, figures), _), mass_K = px.measured(
      objective, PARAMS, batch(), fixed
    )
    total = sum(
      x * want[name] for name, x in ({'kl': 1} | dict(weights)).items()
    )
    np.testing.assert_array_equal(mass_K, [number])
    np.testing.assert_allclose(loss, total / number, rtol=1e-4)
    for name, pair in figures.items():
      np.testing.assert_allclose(pair, (want[name], number), rtol=1e-4)
  assert set(figures) == {'kl', 'acceptance', 'accuracy'}
  wanted = sum(n - first for row in TEXTS for n, first in row)
  assert (number < wanted) == (id_V is not None)


@pytest.mark.parametrize('term', ['kl', 'tv', 'ce'])
def test_every_parameter_learns(term):
  """Catches a term that is no function of the drafter, or of its target."""
  weights = {'kl': 0.0, term: 1.0}
  objective = DraftModel(drafter=DRAFTER, **weights)
  (_, grads), _ = px.measured(objective, PARAMS, batch(), FIXED)
  for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
    name = jax.tree_util.keystr(path)
    assert np.isfinite(leaf).all() and np.any(leaf), name


def test_a_copy_of_the_target_has_nothing_to_learn():
  """KL and TV are 0 there, and so are their slopes; acceptance is 1."""
  drafter = draft_model.DraftModel(config=TARGET)
  objective = DraftModel(drafter=drafter)
  ((loss, figures), grads), mass_K = px.measured(
    objective, TARGET_WEIGHTS, batch(), FIXED
  )
  np.testing.assert_allclose(loss, 0, atol=1e-6)
  np.testing.assert_allclose(figures['acceptance'][0], mass_K[0], rtol=1e-5)
  assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(grads)) < 1e-5


def test_micro_batches_change_nothing():
  """Catches a mean of means: the rows have unlike numbers of wanted tokens."""
  objective = DraftModel(drafter=DRAFTER, tv=0.5, ce=0.5)
  px.check_micro_batches(objective, PARAMS, batch(), FIXED)


@pytest.mark.parametrize(
  ('kept', 'changed'),
  [
    (slice(5, 12), [0, 4, 12]),  # the text before it, and padding
    (slice(0, 5), [5, 6, 12]),  # the one behind it
    (slice(0, 4), [4]),  # the rest of the text itself
  ],
  ids=str,
)
def test_what_may_not_be_seen(kept, changed):
  """Tokens of another text, or behind the last wanted one, change nothing."""
  objective = DraftModel(drafter=DRAFTER, tv=0.5, ce=0.5)
  px.check_unseen(objective, PARAMS, batch(), FIXED, kept, changed, V)


def test_rows_are_what_decoding_computes():
  """Row t of the packed pass against a round in which token t was fed.

  Catches positions that run on over texts, and rows that see other texts.
  """
  texts = batch()
  hidden_BTD = jax.jit(teacher.read_texts)(PARAMS, texts).hidden_BTD
  logq_BTV = jax.nn.log_softmax(hidden_BTD @ PARAMS.head.T)
  depth = 3
  root_B = np.arange(9)  # one shape, and one program, for both
  for b, first, n in ((0, 5, 7), (1, 0, 9)):
    alone = np.pad(texts.token_BT[b, first : first + n], (0, T - n))
    tiled_BT = jnp.asarray(np.tile(alone, (9, 1)))
    got_BSV = px.decoded(
      *(DRAFTER, PARAMS, None, tiled_BT, root_B, None),
      ask=Ask(depth=depth, fanout=V),
      vocab=V,
    )
    for root, got_SV in zip(root_B[:n], got_BSV, strict=False):
      live = min(depth, n - root)
      want_SV = logq_BTV[b, first + root : first + root + live]
      np.testing.assert_allclose(got_SV[:live], want_SV, atol=1e-4)


def test_stored_hidden_states_are_enough():
  """Catches a pass of the target that is not needed, or one left out."""
  stored_BTD = jnp.full((2, T, TARGET.width), 0.25)
  texts = batch().replace(hidden_BTD=stored_BTD)
  view = teacher.read(TARGET_WEIGHTS, texts, DRAFTER.taps)
  np.testing.assert_array_equal(view.hidden_BTD, stored_BTD)
  view = teacher.read(TARGET_WEIGHTS, texts, (0,))
  assert not np.allclose(view.hidden_BTD, stored_BTD)


def test_training_makes_drafts_that_are_kept():
  """A few steps of the real loop: acceptance rises."""
  objective = DraftModel(drafter=DRAFTER)
  optimizer = step.Optimizer(rate=1e-2, steps=30)
  state = step.begin(optimizer, objective, jax.tree.map(jnp.copy, PARAMS), 0)
  many = jax.tree.map(lambda x: x[:, None], batch())
  kept = []
  for _ in range(15):
    state, figures = step.update(
      optimizer, objective, state, FIXED, many, dtype='float32'
    )
    kept.append(float(figures['acceptance']))
  assert kept[-1] > kept[0] + 0.02, kept


def test_refused():
  with pytest.raises(ValueError, match=r"'tv': -1.*0 or more"):
    DraftModel(drafter=DRAFTER, tv=-1)
  with pytest.raises(ValueError, match='all weights are 0'):
    DraftModel(drafter=DRAFTER, kl=0)
