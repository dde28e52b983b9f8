"""DFlash's and JetSpec's losses, held against the drafts of decoding."""

import dataclasses

import blocks_fixture as bx
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.training import step, teacher
from specjax.training.objectives.block import Block

pytestmark = pytest.mark.usefixtures('quick_compiles')

KEY = jax.random.key(3)
BATCH = bx.batch_of()
ALL = 20  # more blocks than a row has candidates: all are drawn


def objective(kind='ce', causal=False, **settings):
  settings = {'anchors': ALL, 'gamma': 3.0} | settings
  return Block(drafter=bx.drafter_of(causal), kind=kind, **settings)


def laws(drafter):
  """float64[blocks, slots, V]: what decoding drafts from."""
  params = bx.params_of(drafter)
  _, table = bx.drafted(drafter, params, BATCH)
  return bx.by_token((table.token_BWC, table.logq_BWC))


def kept(token, fixed):
  return fixed.id_V is None or token in fx.FEW


def expected(of, fixed):
  """(loss, accuracy, prefix), slot by slot in float64."""
  ids = None if fixed.id_V is None else fx.FEW
  log_q, log_p = laws(of.drafter), bx.target_laws(BATCH)
  sums, right = np.zeros(2), {}
  for i, k, r, place in bx.slots_of(BATCH):
    q, p = log_q[i, k], log_p[r, place - 1]
    token = int(BATCH.token_BT[r, place])
    weight = np.exp(-k / of.gamma) if of.gamma else 1.0
    best = np.argmax(bx.normal(q, ids))
    right[i, k] = best == (token if of.kind == 'ce' else np.argmax(p))
    if not kept(token, fixed):
      continue
    if of.kind == 'ce':
      value = -bx.normal(q, ids)[token]
    else:
      p, q = (bx.normal(x / of.heat, ids) for x in (p, q))
      some = np.isfinite(p)
      value = of.heat**2 * np.sum(np.exp(p[some]) * (p[some] - q[some]))
    sums += weight * value, weight
  runs = [
    1 + next((k for k in range(bx.DEPTH) if not right.get((i, k))), bx.DEPTH)
    for i in range(len(bx.blocks_of(BATCH)))
  ]
  return sums[0] / sums[1], np.mean(list(right.values())), np.mean(runs)


@pytest.mark.parametrize(
  ('of', 'fixed'),
  [
    (objective(), bx.FIXED),
    (objective('kl', causal=True, gamma=0.0, heat=2.0), bx.FIXED),
    (objective(), bx.FEW),
    (objective('kl'), bx.FEW),
  ],
  ids=['dflash', 'jetspec', 'dflash few', 'kl few'],
)
def test_is_the_papers_loss_of_what_decoding_drafts(of, fixed):
  """Catches labels, teachers, weights or features that are off by one.

  The laws are those of the drafter's own `begin`, over a cache that holds one
  text; the rest is numpy. So packing, anchors and the two-part attention are
  held to decoding too.
  """
  params = bx.params_of(of.drafter)
  (loss, pairs), _ = bx.total(of, params, fixed, BATCH, KEY)
  want, accuracy, prefix = expected(of, fixed)
  got = bx.figures(pairs)
  np.testing.assert_allclose(loss, want, rtol=1e-4)
  np.testing.assert_allclose(got[of.kind], want, rtol=1e-4)
  np.testing.assert_allclose(got['accuracy'], accuracy, rtol=1e-5)
  np.testing.assert_allclose(got['prefix'], prefix, rtol=1e-5)


def test_pace_weighs_by_what_is_reached():
  """D-PACE by its formula; catches a product or a sum over the wrong slots."""
  of = objective(pace=0.5)
  log_q, want = laws(of.drafter), 0.0
  ends = bx.blocks_of(BATCH)
  for i, (r, a, end) in enumerate(ends):
    n = min(bx.DEPTH, end - a - 1)
    own = [log_q[i, k, int(BATCH.token_BT[r, a + 1 + k])] for k in range(n)]
    reach = np.cumprod(0.5 * np.exp(own) + 0.5)
    want += sum(-own[k] * reach[k:].sum() for k in range(n))
  (loss, _), _ = bx.total(of, bx.params_of(of.drafter), bx.FIXED, BATCH, KEY)
  np.testing.assert_allclose(loss, want / len(ends), rtol=1e-4)


@pytest.mark.parametrize('of', [objective(), objective('kl')], ids=['ce', 'kl'])
def test_gradient_is_that_of_the_loss(of):
  """Every leaf learns, and a step along the gradient does what it promises.

  Catches a stop_gradient too many, such as one around the softmax's sum.
  """
  params = bx.params_of(of.drafter)
  _, grads = bx.total(of, params, bx.FIXED, BATCH, KEY)
  for path, g in jax.tree_util.tree_leaves_with_path(grads):
    assert np.isfinite(g).all() and np.abs(g).max() > 0, path
  norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(grads)))
  size = 1e-2 / norm

  def loss_at(by):
    moved = jax.tree.map(lambda x, g: x + by * g / norm, params, grads)
    return float(bx.total(of, moved, bx.FIXED, BATCH, KEY)[0][0])

  slope = (loss_at(size) - loss_at(-size)) / (2 * size)
  np.testing.assert_allclose(slope, norm, rtol=2e-2)


def test_micro_batches_do_not_change_a_step():
  """Two rows at once or one by one: same loss, norm and parameters.

  Catches a mean per micro-batch: the rows hold different numbers of slots.
  """
  of = objective()
  optimizer = step.Optimizer(rate=1e-3, steps=10)
  whole = jax.tree.map(lambda x: x[None], BATCH)
  split = jax.tree.map(lambda x: x[:, None], BATCH)
  done = []
  for batches in (whole, split):
    state = step.begin(optimizer, of, bx.params_of(of.drafter), 0)
    done.append(
      step.update(optimizer, of, state, bx.FIXED, batches, dtype='float32')
    )
  (_, one), (_, two) = done
  for name in ('loss', 'grad_norm', 'accuracy', 'prefix'):
    np.testing.assert_allclose(one[name], two[name], rtol=1e-4)


@pytest.mark.parametrize('of', [objective(), objective('kl')], ids=['ce', 'kl'])
def test_what_may_not_be_seen_changes_nothing(of):
  """Only the second text of row 0 is asked for; all else becomes another."""
  batch, changed = bx.one_text_of(BATCH)
  params = bx.params_of(of.drafter)
  (a, _), _ = bx.total(of, params, bx.FIXED, batch, KEY)
  (b, _), _ = bx.total(of, params, bx.FIXED, changed, KEY)
  np.testing.assert_allclose(a, b, rtol=1e-6)


def test_stored_features_are_used_as_they_are():
  """What a file holds stands in for the target's pass."""
  of = objective('kl')
  params = bx.params_of(of.drafter)
  view = teacher.read(fx.WEIGHTS, BATCH, of.drafter.taps)
  stored = BATCH.replace(taps_BTE=view.taps_BTE, hidden_BTD=view.hidden_BTD)
  (a, _), _ = bx.total(of, params, bx.FIXED, BATCH, KEY)
  (b, _), _ = bx.total(of, params, bx.FIXED, stored, KEY)
  np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
  'wrong',
  [
    {'anchors': 0},
    {'gamma': -1.0},
    {'kind': 'mse'},
    {'heat': 0.0},
    {'pace': 1.5},
    {'pace': 0.5, 'kind': 'kl'},
  ],
)
def test_refuses_what_no_loss_has(wrong):
  """Each message names what was given."""
  name = next(iter(wrong))
  with pytest.raises(ValueError, match=name):
    dataclasses.replace(objective(), **wrong)
