"""Online alignment: what is trained, on what, and what undoes it."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.models import transformer
from specjax.models.layers import unembed
from specjax.types import Head
from specjax.vocab import alignment as lib
from specjax.vocab import lora
from specjax.vocab.teacher_forced import Place, over_texts

V, SCALE = fx.CONFIG.vocab, 2.0
TEXTS = jax.random.randint(jax.random.key(1), (8, 12), 0, V)
IDS = jnp.asarray([1, 3, 4, 6, 7, 8, 10, 12, 13, 15])
TARGET = fx.WEIGHTS
# The target's own weights, disturbed: something that can be learnt back.
NOISE = transformer.init(fx.CONFIG, jax.random.key(3), scale=0.05)
DRAFTER = jax.tree.map(lambda x, n: x + n - (n == 1), TARGET, NOISE)
HEAD = Head(DRAFTER.head[IDS], IDS)
DRAFT = over_texts(DRAFTER, HEAD, SCALE, TEXTS)
SETTINGS = lib.Settings(rate=3e-3, batch=32, steps=20)


def adapters(weights=DRAFTER, last=2):
  return lora.init(weights, jax.random.key(0), rank=3, last=last)


@functools.cache
def stream():
  """96 positions of random texts with the target's laws over IDS."""
  text_N, position_N = jnp.divmod(jnp.arange(96), TEXTS.shape[1])
  # As many texts on: a later text stands in the row of an earlier one.
  example = Place(text_N=text_N + len(TEXTS), position_N=position_N)
  id_NA = jnp.broadcast_to(IDS, (96, len(IDS)))
  p_NV = jax.nn.softmax(logits(TARGET, example))
  return example, id_NA, jnp.take_along_axis(p_NV, id_NA, axis=1)


def logits(weights, example):
  """float32[N, V] at each place, by a pass over all texts."""
  out = transformer.read(weights, TEXTS)
  logits_KTV = unembed(out.hidden_BTD, weights.head)
  return logits_KTV[example.text_N % len(TEXTS), example.position_N]


def ring():
  example, id_NA, p_NA = stream()
  hard_N = lib.difficulty(p_NA, DRAFT(adapters(), example, id_NA))
  blank = lib.empty_ring(example, 128, len(IDS))
  return lib.push(blank, example, id_NA, p_NA, hard_N, jnp.ones(96, bool))


class TestAdapters:
  @pytest.mark.parametrize('stacked', [True, False])
  def test_new_ones_add_nothing(self, stacked):
    """To the last bit; and what is added is where it belongs: the last
    layers' seven matrices, in both layouts."""
    weights = transformer.restack(DRAFTER, stacked)
    made = adapters(weights)
    same = lora.merge(weights, made, SCALE)
    for a, b in zip(*map(jax.tree.leaves, (same, weights)), strict=True):
      np.testing.assert_array_equal(a, b)
    ones = jax.tree.map(jnp.ones_like, made)
    changed = transformer.restack(lora.merge(weights, ones, SCALE), True)
    before = transformer.restack(weights, True)
    pairs = zip(
      *map(jax.tree_util.tree_leaves_with_path, (changed, before)), strict=True
    )
    seen = set()
    for (path, new), (_, old) in pairs:
      name = path[-1].name
      if name in (*lora.ATTENTION, *lora.MLP):
        np.testing.assert_array_equal(new[0], old[0])  # the first of three
        np.testing.assert_allclose(new[1:] - old[1:], SCALE * 3, atol=1e-5)
        seen.add(name)
      else:
        np.testing.assert_array_equal(new, old)
    assert len(seen) == 7

  def test_wrong_ones_are_refused(self):
    with pytest.raises(ValueError, match='last 4'):
      adapters(last=4)
    with pytest.raises(ValueError, match='rank is 0'):
      lora.init(DRAFTER, jax.random.key(0), rank=0, last=1)


def test_the_drafter_is_read_as_it_drafts():
  """Its law over the list at each position; -inf for an id outside it."""
  example, id_NA, _ = stream()
  got = DRAFT(adapters(), example, id_NA.at[:, 0].set(2))
  want = jax.nn.log_softmax(logits(DRAFTER, example)[:, IDS])
  np.testing.assert_allclose(got[:, 1:], want[:, 1:], atol=1e-4)
  assert np.all(np.isneginf(got[:, 0]))


def test_loss_is_kl_by_hand():
  """Two positions over A = {0, 1}: p(A) weighs, and what is outside is mute."""
  logq = jnp.log(jnp.asarray([[0.25, 0.75, 0.5], [0.5, 0.5, 0.5]]))
  logq = logq.at[:, 2].set(-jnp.inf)
  p = jnp.asarray([[0.3, 0.3, 0.0], [0.2, 0.0, 0.0]])
  got = lib.loss(lambda *_: logq, None, None, None, p, jnp.asarray([1.0, 0.5]))
  kl = (0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), math.log(2))
  np.testing.assert_allclose(
    got, (0.6 * kl[0] + 0.5 * 0.2 * kl[1]) / 1.5, rtol=1e-5
  )
  hard = lib.difficulty(p.at[1].set(0), logq)
  np.testing.assert_allclose(hard, [1 - 0.25 - 0.5, 1], rtol=1e-5)
  zero = lib.loss(lambda *_: logq, None, None, None, 0 * p, jnp.ones(2))
  assert zero == 0


def test_curriculum_by_hand():
  """Competence, quantile and sigmoid; at the end all count at least half."""
  kappa = [
    float(lib.competence(jnp.int32(s), 0.3, 50)) for s in (0, 10, 50, 90)
  ]
  want = [0.3, math.sqrt(10 * 0.91 / 50 + 0.09), 1, 1]
  np.testing.assert_allclose(kappa, want, rtol=1e-6)
  hard = jnp.asarray([0.1, 0.2, 0.35, 0.6])
  got = lib.curriculum(hard, 0.2, 0.05)
  want = [1 / (1 + math.exp(-(0.2 - d) / 0.05)) for d in (0.1, 0.2, 0.35, 0.6)]
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert np.all(lib.curriculum(hard, 0.2, math.inf) == 0.5)


def test_the_ring_keeps_the_latest():
  """Invalid positions take no slot; wrapped writes replace the oldest."""
  example = jnp.arange(5.0)
  blank = lib.empty_ring(example, 4, 1)
  push = lambda ring, values, valid: lib.push(
    ring,
    jnp.asarray(values, jnp.float32),
    jnp.zeros((len(values), 1), jnp.int32),
    jnp.ones((len(values), 1)),
    jnp.asarray(values, jnp.float32),
    jnp.asarray(valid),
  )
  ring = push(blank, [1, 2, 3], [True, False, True])
  assert ring.example.tolist() == [1, 3, 0, 0] and ring.count == 2
  ring = push(ring, [4, 5, 6], [True, True, True])
  assert ring.example.tolist() == [6, 3, 4, 5] and ring.count == 5
  assert ring.difficulty_N.tolist() == [6, 3, 4, 5]


step = jax.jit(functools.partial(lib.align_step, SETTINGS, DRAFT))


class TestStep:
  def test_a_fixed_stream_is_learnt(self):
    """The drafter comes nearer to the target on all positions."""
    aligner, filled = lib.begin(SETTINGS, adapters()), ring()
    example, id_NA, p_NA = stream()
    whole = jax.jit(
      lambda x: lib.loss(DRAFT, x, example, id_NA, p_NA, jnp.ones(96))
    )
    before = whole(aligner.adapters)
    # Acceptance that stays below its best: an update each time.
    aligner = aligner.replace(best=jnp.float32(1), ema=jnp.float32(0.5))
    for i in range(60):
      aligner, value = step(aligner, filled, jax.random.key(i))
      assert np.isfinite(value)
    assert aligner.step == 60
    assert whole(aligner.adapters) < 0.6 * before

  def test_gradients_reach_adapters_only(self):
    """b moves at once, a when b is not zero any more; the weights are theirs.

    A gradient through the weights would have to be asked for: they are not an
    argument. What must hold is that every adapter is reached.
    """
    first, _ = step(lib.begin(SETTINGS, adapters()), ring(), jax.random.key(0))
    for pairs in adapters().values():
      assert set(pairs) == {*lora.ATTENTION, *lora.MLP}
    gradient = jax.grad(lambda x: lib.loss(DRAFT, x, *stream(), jnp.ones(96)))
    size = lambda x: float(jnp.abs(x).max())
    for at, moving in ((adapters(), False), (first.adapters, True)):
      for pairs in gradient(at).values():
        for pair in pairs.values():
          assert size(pair.b_LOA) > 0
          assert (size(pair.a_LAI) > 0) == moving

  def test_nothing_to_learn(self):
    """An empty ring; or acceptance at its best after the first updates."""
    begun = lib.begin(SETTINGS, adapters())
    example, _, _ = stream()
    blank = lib.empty_ring(example, 128, len(IDS))
    rested = begun.replace(
      step=jnp.int32(10), ema=jnp.float32(0.7), best=jnp.float32(0.71)
    )
    for aligner, held in ((begun, blank), (rested, ring())):
      got, value = step(aligner, held, jax.random.key(0))
      assert np.isnan(value) and got.step == aligner.step
      for a, b in zip(*map(jax.tree.leaves, (got, aligner)), strict=True):
        np.testing.assert_array_equal(a, b)
    drifted = rested.replace(ema=jnp.float32(0.6))
    assert step(drifted, ring(), jax.random.key(0))[0].step == 11


class TestGuard:
  settings = dataclasses.replace(SETTINGS, smooth=0.9, watch=8)

  def aligned(self):
    """Acceptance 0.8, one update; the snapshot is what was before it."""
    aligner = lib.begin(self.settings, adapters())
    aligner = lib.note(self.settings, aligner, jnp.full(4, 0.8))
    update = functools.partial(lib.align_step, self.settings, DRAFT)
    return aligner, jax.jit(update)(aligner, ring(), jax.random.key(0))[0]

  def test_a_fall_undoes_the_update(self):
    """The adapters of before, at half the rate, and moments forgotten."""
    before, after = self.aligned()
    assert after.mark == pytest.approx(0.8) and after.since == 0
    kept = lib.note(self.settings, after, jnp.full(4, 0.75))
    assert kept.rate == after.rate and kept.since == 4
    undone = lib.note(self.settings, after, jnp.full(8, 0.5))
    assert undone.rate == after.rate / 2 and undone.step == 1
    assert (kept.reverts, undone.reverts) == (0, 1)
    assert undone.mark == undone.ema < 0.75
    for a, b, c in zip(
      *(jax.tree.leaves(x.adapters) for x in (undone, before, after)),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)
      if a.ndim == 3 and not np.any(a):
        assert np.any(c)  # there was something to undo
    assert not any(np.any(x) for x in jax.tree.leaves(undone.moments))

  def test_the_average_settles_as_a_mean(self):
    """One lucky first round is no best to fall from; nan is no round."""
    begun = lib.begin(self.settings, adapters())
    noted = lib.note(self.settings, begun, jnp.asarray([1, 0.5, 0, math.nan]))
    assert noted.ema == noted.best == pytest.approx(0.5)
    assert noted.seen == noted.since == 3 and noted.reverts == 0
    late = lib.note(self.settings, noted, jnp.full(20, 0.5))
    late = lib.note(self.settings, late, jnp.ones(1))
    assert late.ema == pytest.approx(0.9 * 0.5 + 0.1)

  def test_snapshots_are_renewed_after_the_watch(self):
    """Within it the older one stays, so that several updates can be undone."""
    _, one = self.aligned()
    update = functools.partial(lib.align_step, self.settings, DRAFT)
    update = jax.jit(update)
    rounds = lambda aligner, n: lib.note(
      self.settings, aligner, jnp.full(n, 0.8)
    )
    two, _ = update(rounds(one, 4), ring(), jax.random.key(1))
    three, _ = update(rounds(two, 4), ring(), jax.random.key(2))
    leaf = lambda x: np.asarray(jax.tree.leaves(x)[1])
    np.testing.assert_array_equal(leaf(two.snapshot), leaf(one.snapshot))
    np.testing.assert_array_equal(leaf(three.snapshot), leaf(two.adapters))
    assert three.since == 0
