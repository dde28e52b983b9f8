"""Draft-OPD against numpy, the decode loop's own states and single passes."""

import functools

import conformance_checks as checks
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import opd_fixture as ox
import pytest

from specjax.models.layers import unembed
from specjax.training.batch import Fixed
from specjax.training.objectives.draft_opd import DraftOpd, judge
from specjax.training.teacher import read_texts

K = ox.SLOTS
ROUNDS = 6  # of every text, of which the numpy sums are taken
FEW = np.asarray(fx.FEW)
FIXED = {'all': ox.FIXED, 'few': Fixed(fx.WEIGHTS, jnp.asarray(FEW, jnp.int32))}
FORMS = ('sampled', 'full')


@functools.cache
def setting(vocab='all'):
  """(parameters, the first rounds of each text): some drafts are kept."""
  replay = ox.whole(ox.batches(ox.trained(), FIXED[vocab])[0])
  rounds = {
    name: getattr(replay, name)[:, :ROUNDS]
    for name in (
      'anchor_BR', 'kept_BR', 'committed_BR', 'draft_BRK', 'logp_BRK'
    )
  }  # fmt: skip
  return ox.trained(), replay.replace(**rounds)


LAW = {'gamma': 0.7, 'accepted': 2.0, 'rejected': 0.5}


def objective(form='sampled'):
  return DraftOpd(drafter=ox.DRAFTER, form=form, **LAW)


@functools.partial(jax.jit, static_argnames=('goal',))
def run(goal, params, fixed, replay, mass_K):
  """((loss, metrics), gradients of parameters and target); one program."""

  def of(params, target):
    frozen = fixed.replace(target=target)
    return goal.loss(params, frozen, replay, None, mass_K)

  return jax.value_and_grad(of, (0, 1), has_aux=True)(params, fixed.target)


def value(goal, params, fixed, replay):
  """(loss, metrics), over its own mass."""
  mass_K = goal.mass(fixed, replay, None)
  return run(goal, params, fixed, replay, mass_K)[0]


@functools.cache
def logits_of_the_loop(vocab):
  """(float32[N, K, V] of the drafter, of the target) for every live round.

  The drafter's from the loop's own prefill and block pass, with the text up to
  the anchor as a prompt; the target's from passes over the text and the drafts.
  """
  params, replay = setting(vocab)
  host = jax.device_get(replay)
  case = fx.Case(ox.METHOD, fx.Params(target=fx.WEIGHTS, drafter=params))
  live = np.argwhere(host.committed_BR > 0)
  texts = [host.batch.token_BT[b, : host.anchor_BR[b, r]] for b, r in live]
  state = fx.start(case, fx.rows_of([t.tolist() for t in texts], new=2))
  tokens = [host.batch.token_BT[b, host.anchor_BR[b, r]] for b, r in live]
  last = state.context.length_B - 1
  # Greedy: the token that the prompt gives is the anchor.
  np.testing.assert_array_equal(
    state.context.tokens_BT[np.arange(len(live)), last], tokens
  )
  hidden = ox.DRAFTER.hidden(params, fx.WEIGHTS, state.draft, state.context)
  own = np.asarray(unembed(hidden.normed_BTD, fx.WEIGHTS.head))
  target = [
    checks.full_logits([*t, a, *host.draft_BRK[b, r]])[len(t) : -1]
    for (b, r), t, a in zip(live, texts, tokens, strict=True)
  ]
  return live, own, np.asarray(target)


def log_softmax(x):
  x = x.astype(np.float64)
  x = x - x.max(axis=-1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def by_hand(form, vocab, gamma, accepted, rejected):
  """The loss in numpy, slot by slot."""
  live, own, target = logits_of_the_loop(vocab)
  _, replay = setting(vocab)
  host = jax.device_get(replay)
  few = FEW if vocab == 'few' else np.arange(fx.CONFIG.vocab)
  kept, lost, n, z = 0.0, 0.0, 0, 0.0
  for i, (row, r) in enumerate(live):
    take = int(host.kept_BR[row, r])
    there = int(host.committed_BR[row, r])
    for k in range(1, K + 1):
      logp, logq = (
        log_softmax(target[i, k - 1]),
        log_softmax(own[i, k - 1, few]),
      )
      part = log_softmax(target[i, k - 1, few])
      draft = int(host.draft_BRK[row, r, k - 1])
      place = int(host.anchor_BR[row, r]) + k
      if k <= (there if form == 'sampled' else min(take, there)):
        label = int(host.batch.token_BT[row, place])
        if label in few:
          t, s = logp[label], logq[list(few).index(label)]
          p, q = np.exp(t), np.exp(s)
          bernoulli = p * (t - s) + (1 - p) * np.log((1 - p) / (1 - q))
          full = (np.exp(part) * (part - logq)).sum()
          kept += bernoulli if form == 'sampled' else full
          n += 1
      if there > take and k > take:
        gap = logp[draft] - logq[list(few).index(draft)]
        k3 = min(np.exp(gap) - gap - 1, 10)
        full = (np.exp(logq) * (logq - part)).sum()
        lost += gamma ** (k - 1) * (k3 if form == 'sampled' else full)
        z += gamma ** (k - 1)
  assert n and z > 4
  if form == 'sampled':
    return (accepted * kept + rejected * lost) / (accepted * n + rejected * z)
  both = accepted * kept / n + rejected * lost / z
  return both / (accepted + rejected)


class TestLoss:
  @pytest.mark.parametrize('vocab', FIXED)
  def test_replay_is_what_the_loop_drafted(self, vocab):
    """Catches a block, a tap or a slot that is one off, and the loss's best
    token where the drafts are from fewer rows."""
    live, own, _ = logits_of_the_loop(vocab)
    params, replay = setting(vocab)
    few = FEW if vocab == 'few' else np.arange(fx.CONFIG.vocab)
    draft = np.asarray(replay.draft_BRK)[live[:, 0], live[:, 1]]
    np.testing.assert_array_equal(few[own[..., few].argmax(-1)], draft)
    for form in FORMS:
      _, metrics = value(objective(form), params, FIXED[vocab], replay)
      assert metrics['replayed'].tolist() == [len(live) * K] * 2
    moved = replay.replace(anchor_BR=replay.anchor_BR + replay.live_BR)
    same, count = value(objective(), params, FIXED[vocab], moved)[1]['replayed']
    assert same < count

  @pytest.mark.parametrize('vocab', FIXED)
  @pytest.mark.parametrize('form', FORMS)
  def test_against_numpy(self, form, vocab):
    """Catches a decay from the rejection on, a correction in the wrong stream,
    a teacher without the wrong drafts, divisors that are pooled or not, and
    tokens without a row."""
    params, replay = setting(vocab)
    got, metrics = value(objective(form), params, FIXED[vocab], replay)
    want = by_hand(form, vocab, **LAW)
    np.testing.assert_allclose(got, want, rtol=2e-4)
    rounds = int(replay.live_BR.sum())
    tokens = int(replay.committed_BR.sum())
    assert metrics['mean_accepted'].tolist() == [tokens, rounds]

  def test_the_target_judges_behind_wrong_drafts(self):
    """Catches a block that sees another, or the text behind its anchor."""
    _, replay = setting()
    rows = read_texts(fx.WEIGHTS, replay.batch).rows
    hidden_BRKD = jax.jit(judge)(fx.WEIGHTS, replay, rows)
    logits = jnp.einsum('brkd,vd->brkv', hidden_BRKD, fx.WEIGHTS.head)
    live, _, target = logits_of_the_loop('all')
    got = np.asarray(logits)[live[:, 0], live[:, 1]]
    np.testing.assert_allclose(got, target, atol=1e-4, rtol=1e-4)

  @pytest.mark.parametrize('form', FORMS)
  def test_nothing_else_is_read(self, form):
    """Catches rounds that are none, and text behind what a round committed."""
    params, replay = setting()
    goal = objective(form)
    last = replay.replace(
      committed_BR=replay.committed_BR.at[:, 1:].set(0),
      kept_BR=replay.kept_BR.at[:, 1:].set(0),
    )
    want, _ = value(goal, params, ox.FIXED, last)
    end_B1 = (last.anchor_BR + last.committed_BR)[:, :1]
    place_T = jnp.arange(last.batch.token_BT.shape[1])
    token_BT = last.batch.token_BT
    behind = jnp.where(place_T > end_B1, (token_BT + 1) % 16, token_BT)
    before = jnp.where(place_T == end_B1 - 4, (token_BT + 1) % 16, token_BT)
    changed = lambda token_BT: last.replace(
      batch=last.batch.replace(token_BT=token_BT),
      draft_BRK=last.draft_BRK.at[:, 1:].add(1),
      logp_BRK=last.logp_BRK.at[:, 1:].set(jnp.nan),
      anchor_BR=last.anchor_BR.at[:, 1:].add(1),
    )
    got, _ = value(goal, params, ox.FIXED, changed(behind))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got, _ = value(goal, params, ox.FIXED, changed(before))
    assert abs(got - want) > 1e-3 * want


class TestGradients:
  @pytest.mark.parametrize('vocab', FIXED)
  @pytest.mark.parametrize('form', FORMS)
  def test_who_learns(self, form, vocab):
    """Every leaf of the drafter does; the target is read and stays."""
    params, replay = setting(vocab)
    goal, fixed = objective(form), FIXED[vocab]
    mass_K = goal.mass(fixed, replay, None)
    _, (own, target) = run(goal, params, fixed, replay, mass_K)
    for leaf in jax.tree.leaves(own):
      assert np.isfinite(leaf).all() and np.abs(leaf).max() > 0
    for leaf in jax.tree.leaves(target):
      assert (np.asarray(leaf) == 0).all()

  @pytest.mark.parametrize('form', FORMS)
  def test_finite_differences(self, form):
    """Catches a stop_gradient in the wrong place, in random directions."""
    params, replay = setting()
    goal = objective(form)
    mass_K = goal.mass(ox.FIXED, replay, None)
    _, (own, _) = run(goal, params, ox.FIXED, replay, mass_K)
    flat, tree = jax.tree.flatten(params)
    for seed in range(2):
      key = jax.random.key(seed)
      way = jax.tree.unflatten(
        tree, [jax.random.normal(key, x.shape) for x in flat]
      )
      ends = []
      for step in (1e-3, -1e-3):
        scaled = jax.tree.map(lambda d, step=step: step * d, way)
        moved = jax.tree.map(jnp.add, params, scaled)
        ends.append(float(run(goal, moved, ox.FIXED, replay, mass_K)[0][0]))
      want = (ends[0] - ends[1]) / 2e-3
      dots = jax.tree.map(jnp.vdot, own, way)
      np.testing.assert_allclose(
        sum(jax.tree.leaves(dots)), want, rtol=3e-2, atol=2e-3
      )

  @pytest.mark.parametrize('form', FORMS)
  def test_micro_batches_add_up(self, form):
    """Catches a divisor of a micro-batch's own."""
    params, replay = setting()
    goal = objective(form)
    odd_B1 = (jnp.arange(len(ox.PROMPTS)) % 2)[:, None]
    parts = [
      replay.replace(committed_BR=replay.committed_BR * x_B1)
      for x_B1 in (odd_B1, 1 - odd_B1)
    ]
    masses = [goal.mass(ox.FIXED, part, None) for part in parts]
    whole_K = goal.mass(ox.FIXED, replay, None)
    np.testing.assert_allclose(sum(masses), whole_K, rtol=1e-5)
    assert not np.allclose(*masses)
    of = lambda x: run(goal, params, ox.FIXED, x, whole_K)
    (one, one_g), (two, two_g), (all, all_g) = map(of, (*parts, replay))
    np.testing.assert_allclose(one[0] + two[0], all[0], rtol=1e-5)
    jax.tree.map(
      lambda x, y, z: np.testing.assert_allclose(
        x + y, z, rtol=1e-3, atol=1e-5
      ),
      one_g[0],
      two_g[0],
      all_g[0],
    )


class TestLearning:
  def test_one_rollout_by_heart(self):
    """Catches a loss whose minimum is no better drafter: its own rounds get
    longer, its texts stay the target's."""
    before, first = ox.batches(ox.params_of())
    after, second = ox.batches(ox.trained())
    assert second['mean_accepted'] > 1.5 * first['mean_accepted']
    token = lambda replay: ox.whole(replay).batch.token_BT
    np.testing.assert_array_equal(token(before), token(after))
