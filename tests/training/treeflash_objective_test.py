"""TreeFlash's loss, held against the transition tables of decoding."""

import dataclasses

import blocks_fixture as bx
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.drafters import treeflash
from specjax.training.objectives.treeflash import TreeFlash

pytestmark = pytest.mark.usefixtures('quick_compiles')

KEY = jax.random.key(3)
BATCH = bx.batch_of()
# Every token is among the previous ones that the tables know.
DRAFTER = treeflash.from_hf(
  bx.config_of('TreeFlashDraftModel'), fx.CONFIG, plain=fx.CONFIG.vocab
)


def objective(**settings):
  return TreeFlash(drafter=DRAFTER, **{'anchors': 20, 'gamma': 3.0} | settings)


def params_of():
  """A correction that changes much: it starts as none."""
  params = DRAFTER.init(jax.random.key(1), fx.CONFIG)
  down_DF = params.correction.down_DF
  random = 0.02 * jax.random.normal(jax.random.key(2), down_DF.shape)
  correction = params.correction.replace(down_DF=random)
  return bx.widened(params.replace(correction=correction))


def laws(params):
  """(corrected, plain), each {(block, slot): float64[V]}, as decoding has."""
  root, tables = bx.drafted(DRAFTER, params, BATCH)
  root_BV = bx.by_token((root.token_BWC, root.logq_BWC))[:, 0]
  next_BTMV = bx.by_token((tables.token_BTMC, tables.logq_BTMC))
  parent_BTM = np.asarray(tables.parent_BTM)
  _, table = bx.drafted(DRAFTER.backbone, params.backbone, BATCH)
  plain_BTV = bx.by_token((table.token_BWC, table.logq_BWC))
  corrected = {}
  for i, k, r, place in bx.slots_of(BATCH):
    before = int(BATCH.token_BT[r, place - 1])
    m = int(np.argmax(parent_BTM[i, k - 1] == before)) if k else 0
    corrected[i, k] = next_BTMV[i, k - 1, m] if k else root_BV[i]
  return corrected, {at: plain_BTV[at] for at in corrected}


def expected(of, fixed, params):
  """The loss, slot by slot in float64."""
  ids = None if fixed.id_V is None else fx.FEW
  corrected, plain = laws(params)
  log_p, sums = bx.target_laws(BATCH), np.zeros(2)

  def lost(log_q, p, token):
    if of.kind == 'ce':
      return -bx.normal(log_q, ids)[token]
    p, q = bx.normal(p, ids), bx.normal(log_q, ids)
    some = np.isfinite(p)
    return np.sum(np.exp(p[some]) * (p[some] - q[some]))

  for i, k, r, place in bx.slots_of(BATCH):
    token = int(BATCH.token_BT[r, place])
    if ids is not None and token not in ids:
      continue
    p, weight = log_p[r, place - 1], np.exp(-k / of.gamma)
    value = lost(corrected[i, k], p, token)
    value += of.marginal * lost(plain[i, k], p, token)
    sums += weight * value, weight
  return sums[0] / sums[1]


@pytest.mark.parametrize(
  ('of', 'fixed'),
  [
    (objective(), bx.FIXED),
    (objective(kind='ce'), bx.FEW),
    (objective(marginal=0.5, frozen=()), bx.FIXED),
  ],
  ids=['kl', 'ce few', 'joint'],
)
def test_is_the_loss_of_the_laws_that_decoding_has(of, fixed):
  """Catches a previous token, a teacher or a label in the wrong slot.

  The laws are entries of the tables that the drafter itself builds over a cache
  of one text; the one behind the true previous token is picked.
  """
  params = params_of()
  (loss, pairs), _ = bx.total(of, params, fixed, BATCH, KEY)
  np.testing.assert_allclose(loss, expected(of, fixed, params), rtol=1e-4)
  assert 0 <= bx.figures(pairs)['accuracy'] < 1
  assert 1 <= bx.figures(pairs)['prefix'] < bx.BLOCK


def test_a_frozen_backbone_has_no_gradient_and_costs_none():
  """The correction learns, with the gradient of joint training."""
  params, joint = params_of(), objective(frozen=())
  (loss, _), both = bx.total(joint, params, bx.FIXED, BATCH, KEY)
  (same, _), grads = bx.total(objective(), params, bx.FIXED, BATCH, KEY)
  np.testing.assert_allclose(loss, same, rtol=1e-6)
  for x, y in zip(
    jax.tree.leaves(grads.correction),
    jax.tree.leaves(both.correction),
    strict=True,
  ):
    assert np.isfinite(x).all() and np.abs(x).max() > 0
    np.testing.assert_allclose(x, y, atol=1e-5)
  assert not any(np.any(x) for x in jax.tree.leaves(grads.backbone))
  assert all(np.any(x) for x in jax.tree.leaves(both.backbone))


def test_nothing_is_computed_back_through_a_frozen_backbone():
  """Catches a gradient that is computed and thrown away by the optimizer."""

  def products(of):
    lowered = bx.total.lower(of, params_of(), bx.FIXED, BATCH, KEY)
    return lowered.as_text().count('stablehlo.dot_general')

  def forward(of):
    run = jax.jit(lambda p: of.loss(p, bx.FIXED, BATCH, KEY, jnp.ones(1)))
    return run.lower(params_of()).as_text().count('stablehlo.dot_general')

  of = objective()
  # The head and the correction: 3 products forward, some twice, and back.
  assert products(of) - forward(of) < 16
  assert products(objective(frozen=())) - forward(of) > 40


def test_starts_as_the_plain_law():
  """A correction of zero: the same loss as the marginal's own term."""
  params = bx.widened(DRAFTER.init(jax.random.key(1), fx.CONFIG))
  of = objective(marginal=1.0, frozen=())
  (_, pairs), _ = bx.total(of, params, bx.FIXED, BATCH, KEY)
  got = bx.figures(pairs)
  np.testing.assert_allclose(got['kl'], got['marginal'], rtol=1e-5)


def test_micro_batches_share_one_divisor():
  """Row by row with the divisor of both; catches a mean per micro-batch."""
  of, params = objective(), params_of()
  (whole, _), grads = bx.total(of, params, bx.FIXED, BATCH, KEY)
  rows = [jax.tree.map(lambda x, r=r: x[r : r + 1], BATCH) for r in range(2)]
  mass = [of.mass(bx.FIXED, row, KEY) for row in rows]
  total = of.mass(bx.FIXED, BATCH, KEY)
  np.testing.assert_allclose(sum(mass), total, rtol=1e-5)
  parts = [
    bx.total(of, params, bx.FIXED, row, KEY, scale=sum(mass)[0] / m[0])
    for row, m in zip(rows, mass, strict=True)
  ]
  np.testing.assert_allclose(sum(p[0][0] for p in parts), whole, rtol=1e-5)
  summed = jax.tree.map(jnp.add, parts[0][1], parts[1][1])
  for x, y in zip(jax.tree.leaves(summed), jax.tree.leaves(grads), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)


def test_what_may_not_be_seen_changes_nothing():
  """Only the second text of row 0 is asked for; all else becomes another."""
  batch, changed = bx.one_text_of(BATCH)
  (a, _), _ = bx.total(objective(), params_of(), bx.FIXED, batch, KEY)
  (b, _), _ = bx.total(objective(), params_of(), bx.FIXED, changed, KEY)
  np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
  'wrong', [{'marginal': -1.0}, {'marginal': 0.5}, {'kind': 'mse'}]
)
def test_refuses_what_cannot_be(wrong):
  """Each message names what was given."""
  with pytest.raises(ValueError, match=next(iter(wrong))):
    dataclasses.replace(objective(), **wrong)
