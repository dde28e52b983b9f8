"""Losslessness of the compiled loop, by chi-square against an exact law.

A tiny real target is enumerated: the law of the three tokens after the
prefill's is exact. The whole loop (prefill, drafter, tree, rule, caches, keys)
is then sampled with one seed per row, many rows at once; all rows emit the same
number of tokens, so nothing is conditioned on what was accepted.

Power: Pearson's statistic has noncentrality of at least 4 N TV^2, so 48 000
rows, 125 cells and level 1e-6 expose a total variation of 0.03 with more than
99 % (`test_power`). Rules that are wrong on purpose go through the same harness
with 16 000 rows and must fail with p < 1e-12.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from specjax import sampling
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.drafters.draft_model import DraftModel
from specjax.method import Method
from specjax.models import config, transformer
from specjax.models.layers import unembed
from specjax.trees.chain import Chain
from specjax.types import (
  Ask,
  Frontier,
  Params,
  Sampling,
  TokenTree,
)
from specjax.verify.follow import Follow
from specjax.verify.rejection import Rejection

V = 5
COMPARED = 3  # tokens after the prefill's
NEW = 5  # emitted by every row, so that the cap cannot select
LEVEL = 1e-6
PROMPTS = ((1, 2, 3), (4,))
# temperature, top-k, top-p; all of them side by side in every batch
SETTINGS = {
  'plain': (1.0, 0, 1.0),
  'cool, top-k': (0.7, 3, 1.0),
  'hot, top-p': (1.3, 0, 0.8),
  'greedy': (0.0, 0, 1.0),
}
CONFIG = config.tiny(
  vocab=V, width=16, layers=1, q_heads=2, kv_heads=1, head_dim=8, mlp=16
)
DRAFTER = DraftModel(config=CONFIG)


@functools.cache
def params():
  """A target and a drafter that agree now and then."""
  init = lambda seed: transformer.init(CONFIG, jax.random.key(seed), scale=0.4)
  return Params(target=init(0), drafter=init(1))


@dataclasses.dataclass(frozen=True)
class Fork:
  """Three children of the root, two of the first child, and padding.

  The padding repeats a child: a rule that ignores `valid` counts it twice.
  """

  nodes: int = 7

  @property
  def ask(self):
    return Ask(depth=2, fanout=3)

  def grow(self, params, expand, root, scratch, round):
    last_B1 = round.context.length_B[:, None] - 1
    root_B1 = jnp.take_along_axis(round.context.tokens_BT, last_B1, axis=1)
    child_BC = root.token_BWC[:, 0]
    below, scratch = expand(
      scratch,
      Frontier(token_BW=child_BC[:, :1], row_BW=jnp.zeros_like(root_B1)),
    )
    token_BN = jnp.concatenate(
      [root_B1, child_BC, below.token_BWC[:, 0, :2], child_BC[:, :1]], axis=1
    )
    rows = lambda *x: jnp.broadcast_to(jnp.array(x), token_BN.shape)
    tree = TokenTree(
      token_BN=token_BN,
      parent_BN=rows(0, 0, 0, 0, 1, 1, 0),
      depth_BN=rows(0, 1, 1, 1, 2, 2, 1),
      valid_BN=rows(True, True, True, True, True, True, False),
      logq_BN=jnp.zeros(token_BN.shape),
      max_depth=2,
    )
    return tree, scratch


# Rules that are wrong on purpose.


@dataclasses.dataclass(frozen=True)
class WrongHeat:
  """Rejection that believes q to be sharper than it was drawn."""

  def __call__(self, tree, logits_BNV, round):
    logq_BWC = jax.nn.log_softmax(tree.draft.logq_BWC * 1.5)
    draft = tree.draft.replace(logq_BWC=logq_BWC)
    return Rejection()(tree.replace(draft=draft), logits_BNV, round)


@dataclasses.dataclass(frozen=True)
class Credulous:
  """Rejection that keeps every draft the target can produce at all."""

  def __call__(self, tree, logits_BNV, round):
    draft = tree.draft.replace(
      logq_BWC=jnp.full_like(tree.draft.logq_BWC, -jnp.inf)
    )
    return Rejection()(tree.replace(draft=draft), logits_BNV, round)


@dataclasses.dataclass(frozen=True)
class NoResidual:
  """Rejection that owes p, and not p - q, after a rejection."""

  def __call__(self, tree, logits_BNV, round):
    verdict = Rejection()(tree, logits_BNV, round)
    logits_BV = jax.vmap(lambda x, i: x[i])(logits_BNV, verdict.length_B - 1)
    noise_B1V = sampling.noise(
      round.key_B, round.context.length_B + verdict.length_B, 1, V, 9
    )
    bonus_B = jnp.argmax(logits_BV + noise_B1V[:, 0], axis=-1)
    return verdict.replace(bonus_B=bonus_B.astype(jnp.int32))


@dataclasses.dataclass(frozen=True)
class StaleNoise:
  """Follow that draws all depths with the noise of the first."""

  def __call__(self, tree, logits_BNV, round):
    noise_BPV = jnp.broadcast_to(round.noise_BPV[:, :1], round.noise_BPV.shape)
    return Follow()(tree, logits_BNV, round.replace(noise_BPV=noise_BPV))


def rows_of(names, copies):
  """(tokens, lengths, settings) of names x prompts x copies rows."""
  rows = list(itertools.product(names, PROMPTS, range(copies)))
  token_BT = np.zeros((len(rows), max(map(len, PROMPTS))), np.int32)
  for row_T, (_, prompt, _) in zip(token_BT, rows, strict=True):
    row_T[: len(prompt)] = prompt
  heat, k, p = zip(*(SETTINGS[name] for name, _, _ in rows), strict=True)
  settings = Sampling(
    temperature_B=jnp.asarray(heat, jnp.float32),
    top_k_B=jnp.asarray(k, jnp.int32),
    top_p_B=jnp.asarray(p, jnp.float32),
    min_p_B=jnp.zeros(len(rows)),
  )
  length_B = jnp.asarray([len(prompt) for _, prompt, _ in rows], jnp.int32)
  return jnp.asarray(token_BT), length_B, settings


def counted(tree, verify, names, copies, batches):
  """{setting: counts of the compared tokens, [V^COMPARED]}."""
  method = Method(name='drawn', drafter=DRAFTER, tree=tree, verify=verify)
  # The prefill knows neither tree nor rule: one program for all of them.
  first = Method(name='any', drafter=DRAFTER, tree=Chain(depth=0), verify=None)
  token_BT, length_B, settings = rows_of(names, copies)
  b = length_B.shape[0]
  place_BP = np.asarray(length_B)[:, None] + 1 + np.arange(COMPARED)
  totals = np.zeros((len(names), V**COMPARED), np.int64)
  for batch in range(batches):
    key_B = jax.random.split(jax.random.fold_in(jax.random.key(7), batch), b)
    stop_BI = jnp.full((b, 1), -1)
    state = prefill(
      first,
      params(),
      token_BT,
      length_B,
      key_B,
      settings,
      stop_BI,
      length_B + NEW,
      capacity=16,
    )
    state, _ = decode(method, params(), state)
    assert (np.asarray(state.context.length_B - length_B) == NEW).all()
    text_BT = np.asarray(state.context.tokens_BT)
    text_BP = np.take_along_axis(text_BT, place_BP, axis=1)
    cell_B = text_BP @ V ** np.arange(COMPARED)[::-1]
    for i, cells in enumerate(np.split(cell_B, len(names))):
      totals[i] += np.bincount(cells, minlength=V**COMPARED)
  return dict(zip(names, totals, strict=True))


@functools.cache
def exact_law(name):
  """float64[V^COMPARED]: the law, averaged over prompts."""
  return np.mean([_law_after(name, prompt) for prompt in PROMPTS], axis=0)


def _law_after(name, prompt):
  """Sums over the prefill's token, which is not compared."""
  tails = np.array(list(itertools.product(range(V), repeat=COMPARED)))
  token_BT = jnp.asarray(
    np.concatenate([np.tile(prompt, (len(tails), 1)), tails], axis=1)
  )
  b = len(tails)
  out = transformer.read(params().target, token_BT)
  heat, k, p = SETTINGS[name]
  settings = Sampling(
    temperature_B=jnp.full(b, heat),
    top_k_B=jnp.full(b, k),
    top_p_B=jnp.full(b, p),
    min_p_B=jnp.zeros(b),
  )
  logits_BNV = unembed(out.hidden_BTD, params().target.head)
  logits_BNV = sampling.warp(logits_BNV[:, len(prompt) - 1 :], settings)
  p_BNV = np.exp(np.asarray(logits_BNV, np.float64))
  p_BNV /= p_BNV.sum(-1, keepdims=True)
  # One row per (prefill, 1, 2); its last row of p is the law of token 3.
  weight_B = np.prod(
    [p_BNV[np.arange(b), i, tails[:, i]] for i in range(COMPARED)], axis=0
  )
  joint = (weight_B[:, None] * p_BNV[:, COMPARED]).reshape(V, -1)
  return joint.sum(0)


def p_value(counts, law):
  """Of Pearson's test; cells that expect less than 5 are one cell."""
  if counts[law == 0].any():
    return 0.0
  expected = counts.sum() * law
  order = np.argsort(expected)
  rare = max(1, np.searchsorted(np.cumsum(expected[order]), 5) + 1)
  rare = max(rare, np.sum(expected < 5))
  merge = lambda x: np.append(x[order][rare:], x[order][:rare].sum())
  if rare == len(law):
    return 1.0
  return scipy.stats.chisquare(merge(counts), merge(expected)).pvalue


def assert_lossless(tree, verify, batches=48):
  counts = counted(tree, verify, tuple(SETTINGS), 500, batches)
  found = {name: p_value(c, exact_law(name)) for name, c in counts.items()}
  assert min(found.values()) > LEVEL, found


def test_power():
  cells, rows, distance = V**COMPARED, 48_000, 0.03
  limit = scipy.stats.chi2.isf(LEVEL, cells - 1)
  power = scipy.stats.ncx2.sf(limit, cells - 1, 4 * rows * distance**2)
  assert power > 0.99


@pytest.mark.slow
def test_rejection_follows_the_target():
  assert_lossless(Chain(depth=3, sampled=True), Rejection())


@pytest.mark.slow
def test_follow_on_a_chain_follows_the_target():
  assert_lossless(Chain(depth=3), Follow())


@pytest.mark.slow
def test_follow_on_a_tree_follows_the_target():
  assert_lossless(Fork(), Follow())


@pytest.mark.slow
@pytest.mark.parametrize('rule', [WrongHeat(), Credulous(), NoResidual()])
def test_a_wrong_rejection_is_found(rule):
  counts = counted(Chain(depth=3, sampled=True), rule, ('plain',), 2000, 4)
  assert p_value(counts['plain'], exact_law('plain')) < 1e-12


@pytest.mark.slow
def test_stale_noise_is_found():
  counts = counted(Fork(), StaleNoise(), ('plain',), 2000, 4)
  assert p_value(counts['plain'], exact_law('plain')) < 1e-12
