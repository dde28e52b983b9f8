"""EAGLE-3's objective: its loss and slopes by hand, and what they depend on."""

import functools

import eagle3_numpy as reference
import jax
import jax.numpy as jnp
import numpy as np
import packed_fixture as px
import pytest
from eagle3_fixture import V
from eagle3_training_fixture import (
  DECAY,
  FIXED,
  STEPS,
  TARGET_WEIGHTS,
  batch,
  case,
  noisy,
  spans,
)

from specjax.models import transformer
from specjax.training import step

pytestmark = pytest.mark.usefixtures('quick_compiles')


def by_hand(objective, params, embed_VD, texts, logp_of):
  """(loss, mass, hits, drafted) by loops over texts, rows and steps."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  if p.head_VD is None:
    p = p.replace(head_VD=np.asarray(TARGET_WEIGHTS.head, np.float64))
  ids = np.arange(V) if params.id_V is None else np.asarray(params.id_V)
  nats, mass, hits, drafted = np.zeros((4, STEPS))
  for b, at in spans(texts):
    token_T = np.asarray(texts.token_BT[b, at])
    wanted_T = np.asarray(texts.wanted_BT[b, at])
    taps_TE, logp_TV = logp_of(token_T)
    for t in range(len(token_T) - 2):
      steps = min(STEPS, len(token_T) - 2 - t)
      laws = reference.laws(
        p,
        embed_VD,
        objective.drafter.settings,
        taps_TE[: t + 1],
        token_T[1 : t + 1 + steps],
      )
      for i, logq_V in enumerate(laws):
        if not wanted_T[t + 2 + i]:
          continue
        best = logp_TV[t + 1 + i].argmax()
        mass[i] += 1
        hits[i] += ids[logq_V.argmax()] == best
        if best in ids:
          drafted[i] += 1
          p_V = np.exp(logp_TV[t + 1 + i, ids])
          nats[i] -= p_V @ logq_V / p_V.sum()
  divisor = mass if objective.mean == 'wanted' else texts.token_BT.size
  return (DECAY ** np.arange(STEPS) * nats / divisor).sum(), mass, hits, drafted


def target_of(drafter):
  """Features and laws of one text by the target alone."""

  @functools.cache
  def of(tokens):
    token_BT = jnp.asarray([tokens])
    out = transformer.read(TARGET_WEIGHTS, token_BT, taps=drafter.taps)
    logits = np.asarray(out.hidden_BTD[0] @ TARGET_WEIGHTS.head.T, np.float64)
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return np.asarray(out.taps_BTE[0], np.float64), logp

  return lambda token_T: of(tuple(token_T.tolist()))


@pytest.mark.parametrize(
  ('changes', 'options'),
  [
    ({}, {}),
    ({'norm_output': True}, {'mean': 'rows'}),
    ({'draft_vocab_size': None}, {}),
  ],
  ids=str,
)
def test_loss_by_hand(changes, options):
  """The sum over texts, rows and steps in numpy, and slopes of that sum.

  Catches a law or mask of another place, p over the whole vocabulary, rows
  whose likeliest token is not drafted, a wrong divisor or weight of a step, and
  gradients that stop between steps.
  """
  objective, params = case(changes, **options)
  texts, embed_VD = batch(), np.asarray(TARGET_WEIGHTS.embed_VD, np.float64)
  hand = lambda p: by_hand(
    objective, p, embed_VD, texts, target_of(objective.drafter)
  )
  ((loss, figures), grads), mass_K = px.measured(
    objective, params, texts, FIXED
  )
  want, mass, hits, drafted = hand(params)
  np.testing.assert_allclose(loss, want, rtol=1e-4)
  full = np.full(STEPS, texts.token_BT.size)
  np.testing.assert_array_equal(
    mass_K, full if objective.mean == 'rows' else mass
  )
  for i in range(STEPS):
    np.testing.assert_array_equal(figures[f'accuracy_{i}'], (hits[i], mass[i]))
  np.testing.assert_array_equal(figures['drafted'][0], drafted[0])
  assert len(set(mass)) == STEPS and (drafted[0] < mass[0]) == (
    params.id_V is not None
  )
  side = noisy(grads, seed=5)
  shifted = lambda e: jax.tree.map(
    lambda x, d: x if d is None else np.float64(x) + e * np.float64(d),
    params,
    step._join(side, step._split(params)[1]),
  ).replace(id_V=params.id_V)
  slope = (hand(shifted(1e-5))[0] - hand(shifted(-1e-5))[0]) / 2e-5
  dots = jax.tree.map(lambda g, d: np.vdot(g, d), grads, side)
  np.testing.assert_allclose(sum(jax.tree.leaves(dots)), slope, rtol=2e-3)


@pytest.mark.parametrize('learn_head', [True, False])
def test_what_is_trained(learn_head):
  """Catches a learned leaf without gradient, and a frozen one with some."""
  objective, params = case(
    {'norm_before_fc': True, 'draft_arch': 'qwen3'},
    {'own_embedding': True},
    learn_head=learn_head,
  )
  ((_, _), grads), _ = px.measured(objective, params, batch(), FIXED)
  for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
    name = jax.tree_util.keystr(path)
    assert np.isfinite(leaf).all(), name
    assert bool(np.any(leaf)) == (name[1:] not in objective.frozen), name
  assert 'embed_VD' in objective.frozen
  assert ('head_VD' in objective.frozen) is not learn_head


def test_micro_batches_change_nothing():
  """Catches a mean of means: the rows have unlike numbers of wanted tokens."""
  objective, params = case()
  px.check_micro_batches(objective, params, batch(), FIXED)


@pytest.mark.parametrize(
  ('kept', 'changed'),
  [
    (slice(6, 13), [0, 4, 5, 13]),  # the text before it, and padding
    (slice(0, 6), [6, 7, 12, 13]),  # the one behind it
    (slice(0, 4), [4, 5]),  # the rest of the text itself
  ],
  ids=str,
)
def test_what_may_not_be_seen(kept, changed):
  """Tokens of another text, or behind the last wanted one, change nothing."""
  objective, params = case()
  px.check_unseen(objective, params, batch(), FIXED, kept, changed, V)


def test_a_step_of_training():
  """Catches ids that are cast or moved, and a frozen head that decays."""
  objective, given = case(learn_head=False)
  params = jax.device_get(given)  # the first step takes what it is given
  optimizer = step.Optimizer(rate=1e-2, steps=20, decay=0.1)
  state = step.begin(optimizer, objective, given, 0)
  many = jax.tree.map(lambda x: x[:, None], batch())
  losses = []
  for _ in range(8):
    state, figures = step.update(
      optimizer, objective, state, FIXED, many, dtype='float32'
    )
    losses.append(float(figures['loss']))
  np.testing.assert_array_equal(state.params.id_V, params.id_V)
  assert state.params.id_V.dtype == jnp.int32
  np.testing.assert_array_equal(state.params.head_VD, params.head_VD)
  assert losses[-1] < losses[0]


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'steps': 0}, 'steps is 0'),
    ({'decay': 1.5}, 'decay is 1.5; give a number above 0, at most 1'),
    ({'mean': 'all'}, "mean is 'all'; choose one of wanted, rows"),
  ],
  ids=str,
)
def test_refused(options, message):
  with pytest.raises(ValueError, match=message):
    case(**options)
