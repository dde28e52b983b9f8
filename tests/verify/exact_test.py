"""Losslessness by enumeration: every draft and every outcome, in float64.

The project's own rules run on all combinations of drafts and decisions at once,
each weighted by its probability; what they emit is completed by the target to
three tokens. The total variation to the target is then rounding only. Rules
that are wrong on purpose must be far off, or the sum would prove nothing.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.types import Context, Round, Sampling, TokenTree
from specjax.verify.follow import Follow
from specjax.verify.rejection import judge

V = 4
DRAFTS = 2
EXACT, WRONG = 1e-12, 1e-3
JUDGE, WARP, FOLLOW = map(jax.jit, (judge, sampling.warp, Follow()))
# temperature, top-k, top-p
PLAIN = (1.0, 0, 1.0)
WARPS = (PLAIN, (0.7, 0, 1.0), (1.0, 2, 1.0), (1.3, 0, 0.7), (0.0, 0, 1.0))


def one_setting(heat, k, p, rows):
  return Sampling(
    temperature_B=jnp.full(rows, heat, jnp.float32),
    top_k_B=jnp.full(rows, k, jnp.int32),
    top_p_B=jnp.full(rows, p, jnp.float32),
    min_p_B=jnp.zeros(rows, jnp.float32),
  )


def warped(logits, setting):
  """float64 law of logits [..., V] under the project's own warp."""
  flat = logits.reshape(-1, 1, V)
  out = WARP(jnp.asarray(flat), one_setting(*setting, len(flat)))
  p = np.exp(np.asarray(out, np.float64))
  return (p / p.sum(-1, keepdims=True)).reshape(logits.shape)


def tables(seed, setting=PLAIN, banned=()):
  """Conditional laws after no, one and two tokens; `banned` never drafted."""
  logits = np.random.default_rng(seed).normal(size=(1 + V + V * V, V)) * 1.5
  logits[:, list(banned)] = -np.inf
  p = warped(logits, setting)
  return p[0], p[1 : 1 + V], p[1 + V :].reshape(V, V, V)


def joint(p):
  return p[0][:, None, None] * p[1][:, :, None] * p[2]


def distance(law, p):
  return np.abs(law - joint(p)).sum() / 2


def complete(p, text, weight, law):
  """Adds `weight` times the target's law after `text` to the joint law."""
  rest = (joint(p), p[1][:, :, None] * p[2], p[2], np.ones((V, V, V)))
  n = len(text)
  if n == 1:
    law[text] += weight * rest[1][text]
  elif n == 2:
    law[text] += weight * rest[2][text]
  else:
    law[text] += weight


def cases(p, drawn, claimed):
  """All drafts with all decisions: (p, q, drafts, chances, weights).

  A chance falls into [0, t) or [t, 1) with t = p / q: two cases per draft, each
  tried next to t so that a rule with another threshold decides otherwise.
  """
  rows = []
  for x in itertools.product(range(V), repeat=DRAFTS):
    p_rows = [p[0], p[1][x[0]], p[2][x]]
    q_rows = [claimed[0], claimed[1][x[0]]]
    t = [p_rows[i][v] / max(q_rows[i][v], 1e-300) for i, v in enumerate(x)]
    for keep in itertools.product((True, False), repeat=DRAFTS):
      both = list(zip(t, keep, strict=True))
      share = [min(a, 1) if k else 1 - min(a, 1) for a, k in both]
      chance = [
        min(a, 1) * (1 - 1e-9) if k else a * (1 + 1e-9) for a, k in both
      ]
      weight = drawn[0][x[0]] * drawn[1][x] * np.prod(share)
      rows.append((p_rows, q_rows, x, chance, weight))
  return map(np.array, zip(*rows, strict=True))


def rejection_law(p, drawn, claimed, edit=lambda residual, q: residual):
  """(law of three tokens, P(first draft kept)) of the token rule.

  `drawn` is the law of the drafts, `claimed` what the rule is told of it.
  """
  p_BNV, q_BWV, draft_BW, chance_BW, weight_B = cases(p, drawn, claimed)
  with jax.enable_x64(True):
    valid_BW = jnp.ones(draft_BW.shape, bool)
    args = map(jnp.asarray, (p_BNV, q_BWV, draft_BW, valid_BW, chance_BW))
    kept_B, residual_BV = map(np.asarray, JUDGE(*args))
  assert residual_BV.dtype == np.float64
  law = np.zeros((V, V, V))
  for b in np.flatnonzero(weight_B):
    kept, residual = kept_B[b], residual_BV[b]
    if kept < DRAFTS:
      residual = edit(residual, q_BWV[b, kept])
    for v in range(V):
      text = (*draft_BW[b, :kept].tolist(), v)
      complete(p, text, weight_B[b] * residual[v] / residual.sum(), law)
  return law, weight_B[kept_B > 0].sum()


@pytest.mark.parametrize('setting', WARPS)
@pytest.mark.parametrize('banned', [(), (0, 2)])
def test_rejection_is_exact(setting, banned):
  p, q = tables(0, setting), tables(1, setting, banned)
  law, first = rejection_law(p, q, q)
  assert distance(law, p) < EXACT
  # Efficiency: an exact rule may still waste drafts.
  np.testing.assert_allclose(first, np.minimum(p[0], q[0]).sum(), atol=EXACT)


def test_rejection_is_exact_for_another_warp_of_the_draft():
  p, q = tables(0, (1.0, 0, 1.0)), tables(1, (0.6, 3, 1.0))
  assert distance(rejection_law(p, q, q)[0], p) < EXACT


def argmax_of(q):
  return [np.eye(V)[part.argmax(-1)] for part in q]


def test_rejection_of_best_drafts_needs_their_one_hot_law():
  p, q = tables(0), tables(1)
  best = argmax_of(q)
  assert distance(rejection_law(p, best, best)[0], p) < EXACT
  assert distance(rejection_law(p, best, q)[0], p) > WRONG


def test_q_at_another_temperature_is_found():
  p, q, wrong = tables(0), tables(1), tables(1, (1.3, 0, 1.0))
  assert distance(rejection_law(p, q, wrong)[0], p) > WRONG


def test_residual_cut_to_the_drafted_vocabulary_is_found():
  p, q = tables(0), tables(1, banned=(0,))
  cut = lambda residual, q: np.where(q > 0, residual, 0) + 1e-300
  assert distance(rejection_law(p, q, q, cut)[0], p) > WRONG


def test_no_residual_where_both_laws_agree():
  """Rounding may reject a draft where p = q: then p itself is owed."""
  p_BNV = jnp.full((1, 2, V), 1 / V)
  kept_B, residual_BV = judge(
    p_BNV,
    p_BNV[:, :1],
    jnp.zeros((1, 1), jnp.int32),
    jnp.ones((1, 1), bool),
    jnp.ones((1, 1)),
  )
  assert kept_B.tolist() == [0]
  np.testing.assert_allclose(residual_BV, p_BNV[:, 0])


def test_a_draft_that_is_none_ends_the_chain():
  """It is not judged, so nothing is subtracted from p."""
  p_BNV = jnp.asarray(np.stack([p[0] for p in (tables(0), tables(1))])[None])
  q_BWV = jnp.eye(V)[None, :1]
  kept_B, residual_BV = judge(
    p_BNV,
    q_BWV,
    jnp.zeros((1, 1), jnp.int32),
    jnp.zeros((1, 1), bool),
    jnp.zeros((1, 1)),
  )
  assert kept_B.tolist() == [0]
  np.testing.assert_allclose(residual_BV, p_BNV[:, 0])


def test_a_chance_of_zero_keeps_nothing_impossible():
  p_BNV = jnp.asarray([[[0.0, 0.5, 0.5, 0.0]] * 2])
  kept_B, _ = judge(
    p_BNV,
    jnp.full((1, 1, V), 1 / V),
    jnp.zeros((1, 1), jnp.int32),
    jnp.ones((1, 1), bool),
    jnp.zeros((1, 1)),
  )
  assert kept_B.tolist() == [0]


# Sample and match, on a tree with a fork at each depth and padding that
# repeats a child. Nodes: root, 1, 2, then 0 and 3 below 1, 2 below 2, padding.
TOKEN = (0, 1, 2, 0, 3, 2, 1)
PARENT = (0, 0, 0, 1, 1, 2, 0)
DEPTH = (0, 1, 1, 2, 2, 2, 1)
VALID = (True,) * 6 + (False,)


def node_laws(p):
  return [p[0], p[1][1], p[1][2], p[2][1, 0], p[2][1, 3], p[2][2, 2]]


def follow_all(p):
  """(texts, weights): what Follow emits for every set of draws at the nodes."""
  drawn_BN = np.array(list(itertools.product(range(V), repeat=6)))
  laws = node_laws(p)
  weight_B = np.prod([laws[i][drawn_BN[:, i]] for i in range(6)], axis=0)
  b = len(drawn_BN)
  logits_BNV = np.eye(V)[np.concatenate([drawn_BN, drawn_BN[:, :1]], axis=1)]
  rows = lambda x: jnp.broadcast_to(jnp.asarray(x), (b, len(x)))
  tree = TokenTree(
    token_BN=rows(TOKEN),
    parent_BN=rows(PARENT),
    depth_BN=rows(DEPTH),
    valid_BN=rows(VALID),
    logq_BN=jnp.zeros((b, len(TOKEN))),
    max_depth=2,
  )
  round = Round(
    context=Context(
      tokens_BT=jnp.zeros((b, 1), jnp.int32), length_B=jnp.ones(b, jnp.int32)
    ),
    key_B=sampling.row_keys([0] * b),
    noise_BPV=None,
    sampling=one_setting(0.0, 0, 1.0, b).replace(all_greedy=True),
  )
  verdict = jax.device_get(FOLLOW(tree, jnp.asarray(logits_BNV), round))
  texts = [
    (*(TOKEN[i] for i in path[1:length]), int(bonus))
    for path, length, bonus in zip(
      verdict.path_BP, verdict.length_B, verdict.bonus_B, strict=True
    )
  ]
  return texts, weight_B


@pytest.mark.parametrize('setting', WARPS)
def test_follow_is_exact(setting):
  p = tables(3, setting)
  texts, weights = follow_all(p)
  law = np.zeros((V, V, V))
  for text, weight in zip(texts, weights, strict=True):
    complete(p, text, weight, law)
  assert distance(law, p) < EXACT
  # No exact rule keeps more: each node as often as the target goes there.
  kept = sum(w * (len(t) - 1) for t, w in zip(texts, weights, strict=True))
  paths = p[0][1] + p[0][2]
  paths += p[0][1] * (p[1][1][0] + p[1][1][3]) + p[0][2] * p[1][2][2]
  np.testing.assert_allclose(kept, paths, atol=EXACT)


def test_what_was_accepted_is_not_the_targets_law():
  """The enumeration has power: a condition on the length shows at once."""
  p = tables(3)
  law = np.zeros((V, V, V))
  for text, weight in zip(*follow_all(p), strict=True):
    if len(text) > 1:
      complete(p, text, weight, law)
  assert distance(law / law.sum(), p) > WRONG
