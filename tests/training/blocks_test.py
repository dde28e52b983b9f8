"""Blocks of many texts in one pass, held against decoding's."""

import functools

import blocks_fixture as bx
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.decode.round import speculative_round
from specjax.training import blocks, teacher
from specjax.training.batch import Batch

read = jax.jit(teacher.read, static_argnums=2)

pytestmark = pytest.mark.usefixtures('quick_compiles')


def block_hidden(drafter):
  """Traced anew for every caller, so that a patched constant is read."""
  return jax.jit(functools.partial(blocks.block_hidden, drafter))


def hidden_of(batch, anchor, valid, *, causal=False, stacked=False):
  drafter = bx.drafter_of(causal, stacked)
  view = read(fx.WEIGHTS, batch, drafter.taps)
  return block_hidden(drafter)(
    bx.params_of(drafter),
    fx.WEIGHTS,
    batch,
    view,
    jnp.asarray(anchor, jnp.int32),
    jnp.asarray(valid),
  )


@pytest.mark.parametrize('method', ['dflash', 'jetspec'])
def test_is_what_decoding_computes(method):
  """At the first anchor and behind a round; catches every shift by one.

  A tap of the anchor that is seen, a context row short, positions that start
  elsewhere, a mask of the other kind: each changes the hidden states.
  """
  case = fx.built(method)
  drafter = case.method.drafter
  params = bx.widened(case.params.drafter)
  case = fx.Case(case.method, case.params.replace(drafter=params))
  rows = fx.rows_of(new=16)
  state = fx.start(case, rows)
  one = jax.jit(speculative_round, static_argnums=0)
  states = [state, one(case.method, case.params, state)[0]]
  token_BT = fx.run(case, rows).state.context.tokens_BT[:, :40]
  b, t = token_BT.shape
  batch = Batch(
    token_BT=token_BT,
    wanted_BT=jnp.ones((b, t), bool),
    text_BT=jnp.ones((b, t), jnp.int32),
    position_BT=jnp.broadcast_to(jnp.arange(t), (b, t)),
  )
  view = read(fx.WEIGHTS, batch, drafter.taps)
  anchor_BA = jnp.stack([s.context.length_B - 1 for s in states], axis=1)
  assert jnp.all(anchor_BA[:, 1] > anchor_BA[:, 0])
  raw_BATD, normed_BATD = block_hidden(drafter)(
    params, fx.WEIGHTS, batch, view, anchor_BA, anchor_BA >= 0
  )
  for a, s in enumerate(states):
    want = drafter.hidden(params, fx.WEIGHTS, s.draft, s.context)
    np.testing.assert_allclose(raw_BATD[:, a], want.raw_BTD, atol=1e-4)
    np.testing.assert_allclose(normed_BATD[:, a], want.normed_BTD, atol=1e-4)


@pytest.mark.parametrize('stacked', [False, True])
def test_packing_changes_nothing(stacked):
  """Catches rows that see another text, and positions counted by the row."""
  batch = bx.batch_of()
  one, first = bx.alone(batch, 0, 2)
  anchor = np.array([3, 6])
  packed = hidden_of(
    batch, [anchor + first, [8, 9]], np.ones((2, 2), bool), stacked=stacked
  )
  single = hidden_of(one, [anchor], np.ones((1, 2), bool), stacked=stacked)
  for x, y in zip(packed, single, strict=True):
    np.testing.assert_allclose(x[0], y[0], atol=1e-5)


@pytest.mark.parametrize('causal', [False, True])
def test_sees_strictly_before_its_anchor(causal):
  """Catches features of the anchor or of what follows, which are the answer.

  The taps at the place before the anchor must matter, or nothing is seen.
  """
  drafter, batch = bx.drafter_of(causal), bx.batch_of()
  view = read(fx.WEIGHTS, batch, drafter.taps)
  anchor_BA, valid_BA = jnp.array([[7], [9]]), jnp.ones((2, 1), bool)
  token_BT, params = batch.token_BT, bx.params_of(drafter)
  hidden = block_hidden(drafter)

  def run(place):
    taps = view.taps_BTE.at[0, place:].multiply(-1.0)
    tokens = token_BT.at[0, place + 1 :].add(1) % fx.CONFIG.vocab
    return hidden(
      params,
      fx.WEIGHTS,
      batch.replace(token_BT=tokens),
      view.replace(taps_BTE=taps),
      anchor_BA,
      valid_BA,
    )[0]

  plain = run(bx.TOKENS)
  np.testing.assert_array_equal(run(7), plain)
  assert np.abs(run(6) - plain)[0].max() > 1e-3


def test_many_blocks_are_taken_in_lots(monkeypatch):
  """Catches a pad or an axis mixed up where blocks do not fit at once."""
  batch = bx.batch_of()
  anchor = np.array([[5, 6, 8, 9, 11], [7, 8, 9, 10, 12]])
  valid = np.ones(anchor.shape, bool)
  whole = hidden_of(batch, anchor, valid)
  monkeypatch.setattr(blocks, 'BLOCKS', 2)
  for x, y in zip(whole, hidden_of(batch, anchor, valid), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5)


def candidates(batch, prompt_end):
  """Anchors by the rule, token by token."""
  text, wanted = np.asarray(batch.text_BT), np.asarray(batch.wanted_BT)
  for r in range(text.shape[0]):
    yield [
      i
      for i in range(text.shape[1] - 1)
      if text[r, i] == text[r, i + 1] > 0
      and wanted[r, i + 1]
      and (wanted[r, i] or prompt_end)
    ]


@pytest.mark.parametrize('prompt_end', [False, True])
def test_draws_every_candidate_once(prompt_end):
  """More blocks than candidates: all are drawn, the rest is invalid."""
  batch = bx.batch_of()
  anchor_BA, valid_BA = blocks.draw_anchors(
    batch, jax.random.key(0), 20, prompt_end=prompt_end
  )
  for r, want in enumerate(candidates(batch, prompt_end)):
    got = np.asarray(anchor_BA[r])[np.asarray(valid_BA[r])]
    assert got.tolist() == want


def test_draws_few_at_random():
  """Different anchors for each key, never one twice, all of them at last."""
  batch, seen = bx.batch_of(), [set(), set()]
  for i in range(60):
    anchor_BA, valid_BA = blocks.draw_anchors(batch, jax.random.key(i), 4)
    assert valid_BA.all()
    for r in range(2):
      row = np.asarray(anchor_BA[r]).tolist()
      assert len(set(row)) == 4
      seen[r] |= set(row)
  assert [sorted(s) for s in seen] == list(candidates(batch, False))


def test_labels_stand_in_their_own_slot():
  """Token by token; catches labels shifted, of another text or unasked."""
  batch = bx.batch_of()
  anchor_BA, valid_BA = blocks.draw_anchors(batch, jax.random.key(0), 20)
  slots = blocks.slots(batch, anchor_BA, valid_BA, bx.BLOCK)
  text, wanted = np.asarray(batch.text_BT), np.asarray(batch.wanted_BT)
  token = np.asarray(batch.token_BT)
  for (r, j, k), on in np.ndenumerate(np.asarray(slots.wanted_BAT)):
    a = int(anchor_BA[r, j])
    place = a + k + 1
    fits = bool(valid_BA[r, j]) and place < bx.TOKENS
    fits = fits and text[r, place] == text[r, a] and wanted[r, place]
    assert on == fits
    if on:
      assert slots.token_BAT[r, j, k] == token[r, place]
      assert slots.before_BAT[r, j, k] == place - 1
  assert slots.wanted_BAT.any() and not slots.wanted_BAT.all()
