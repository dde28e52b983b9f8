"""Packed texts and a small DFlash drafter, for tests of block objectives."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
from packed_fixture import packed

from specjax.drafters import dflash_config
from specjax.models import transformer
from specjax.training.batch import Fixed
from specjax.types import Accepted, Ask, Context, Round, Sampling

BLOCK = 6
DEPTH = BLOCK - 1
FIXED = Fixed(target=fx.WEIGHTS)
FEW = Fixed(target=fx.WEIGHTS, id_V=jnp.asarray(fx.FEW, jnp.int32))
# Prompt and answer of the texts of each row; the second row has one.
ROWS = (((5, 9), (3, 8)), ((7, 12),))
TOKENS = 28  # of a row; what is left is padding


def config_of(name, causal=False):
  """A config.json with two layers."""
  return next(
    c
    for c in fx.drafter_configs(fx.CONFIG)
    if c['architectures'] == [name]
    and c['dflash_config']['causal_head'] is causal
  )


def drafter_of(causal=False, stacked=False):
  """A DFlash; `stacked` scans over its layers."""
  config = config_of('DFlashDraftModel', causal)
  return dflash_config.from_hf(config, fx.CONFIG, stacked=stacked)


def params_of(drafter, seed=1):
  """Wide random parameters: laws far from uniform."""
  params = drafter.init(jax.random.key(seed), fx.CONFIG)
  return widened(params)


def widened(params):
  """Matrices eight times as large, norms and biases as they are."""
  return jax.tree_util.tree_map_with_path(
    lambda path, x: x if 'norm' in jax.tree_util.keystr(path[-1:]) else 8 * x,
    params,
  )


def batch_of(rows=ROWS, seed=0, tokens=TOKENS):
  """Random texts, packed; answers are wanted."""
  rng = np.random.default_rng(seed)
  texts = [[(prompt + answer, prompt) for prompt, answer in r] for r in rows]
  token_BT = np.zeros((len(rows), tokens), np.int32)
  batch = packed(texts, token_BT)
  live_BT = np.asarray(batch.text_BT) > 0
  token_BT[live_BT] = rng.integers(0, fx.CONFIG.vocab, live_BT.sum())
  return batch.replace(token_BT=jnp.asarray(token_BT))


def one_text_of(batch):
  """Only the second text of row 0 is asked for; (so, and all else changed)."""
  batch = batch.replace(wanted_BT=batch.wanted_BT & (batch.text_BT == 2))
  other_BT = (batch.token_BT + 3) % fx.CONFIG.vocab
  return batch, batch.replace(
    token_BT=jnp.where(batch.text_BT == 2, batch.token_BT, other_BT)
  )


def alone(batch, row, text):
  """(one text as a batch of its own, where it began)."""
  at = np.flatnonzero(np.asarray(batch.text_BT[row]) == text)
  cut = lambda x: x[row : row + 1, at[0] : at[-1] + 1]
  return jax.tree.map(cut, batch).replace(
    text_BT=jnp.ones((1, len(at)), jnp.int32)
  ), int(at[0])


@functools.partial(jax.jit, static_argnums=0)
def total(objective, params, fixed, batch, key, scale=1.0):
  """((loss, figures), gradient) of one step; the divisor times `scale`."""
  mass_K = scale * objective.mass(fixed, batch, key)
  loss = lambda params: objective.loss(params, fixed, batch, key, mass_K)
  return jax.value_and_grad(loss, has_aux=True)(params)


def figures(pairs):
  return {name: float(x[0] / x[1]) for name, x in pairs.items()}


def blocks_of(batch):
  """[(row, anchor, place behind the last token of its text)], all there are."""
  text, wanted = np.asarray(batch.text_BT), np.asarray(batch.wanted_BT)
  return [
    (r, a, 1 + int(np.flatnonzero(text[r] == text[r, a])[-1]))
    for r in range(len(text))
    for a in range(text.shape[1] - 1)
    if wanted[r, a] and wanted[r, a + 1] and text[r, a] == text[r, a + 1]
  ]


def slots_of(batch):
  """[(block, slot from 0, row, place)] of all blocks; slots have labels."""
  return [
    (i, k, r, a + 1 + k)
    for i, (r, a, end) in enumerate(blocks_of(batch))
    for k in range(min(DEPTH, end - a - 1))
  ]


@functools.partial(jax.jit, static_argnums=0)
def _begin(drafter, params, token_BT, anchor_B, noise_BPV, heat, sharpness):
  """What decoding drafts behind each anchor, texts being read from a cache."""
  b = token_BT.shape[0]
  view = transformer.read(fx.WEIGHTS, token_BT, taps=drafter.taps)
  state = drafter.commit(
    params,
    fx.WEIGHTS,
    drafter.start(params, fx.WEIGHTS, b, 64),
    None,
    Accepted(
      token_BP=token_BT,
      start_B=jnp.zeros(b, jnp.int32),
      length_B=anchor_B,
      taps_BPE=view.taps_BTE,
    ),
  )
  full = lambda x: jnp.full((b,), x)
  round = Round(
    context=Context(token_BT, anchor_B + 1),
    key_B=None,
    noise_BPV=noise_BPV,
    sampling=Sampling(
      full(heat), full(0), full(1.0), full(0.0), all_greedy=noise_BPV is None
    ),
    sharpness_P=sharpness,
  )
  ask = Ask(depth=DEPTH, fanout=fx.CONFIG.vocab)
  return drafter.begin(params, fx.WEIGHTS, state, round, ask)


def drafted(drafter, params, batch, noise=None, heat=0.0, sharpness=None):
  """`drafter.begin` of every block, its text alone in a row from place 0."""
  texts, anchors = [], []
  for r, a, end in blocks_of(batch):
    first = int(np.argmax(batch.text_BT[r] == batch.text_BT[r, a]))
    text = np.asarray(batch.token_BT[r, first:end])
    texts.append(np.pad(text, (0, TOKENS - len(text))))
    anchors.append(a - first)
  return _begin(
    drafter,
    params,
    jnp.asarray(texts),
    jnp.asarray(anchors),
    noise,
    heat,
    sharpness,
  )


def by_token(candidates):
  """float64[..., V]: scores in order of their tokens; all are candidates."""
  token, logq = np.asarray(candidates[0]), np.asarray(candidates[1], float)
  out = np.full(logq.shape, np.nan)
  np.put_along_axis(out, token, logq, axis=-1)
  assert np.isfinite(out).all()
  return out


def target_laws(batch):
  """float64[B, S, V]: log p of the next token, texts read one by one."""
  out = np.zeros((*batch.token_BT.shape, fx.CONFIG.vocab))
  for r in range(len(out)):
    for text in range(1, int(batch.text_BT[r].max()) + 1):
      one, first = alone(batch, r, text)
      hidden = transformer.read(fx.WEIGHTS, one.token_BT).hidden_BTD[0]
      logits = np.asarray(hidden, float) @ np.asarray(fx.WEIGHTS.head, float).T
      out[r, first : first + len(logits)] = normal(logits)
  return out


def normal(logits, ids=None):
  """log softmax, over these ids only."""
  z = np.asarray(logits, float)
  if ids is not None:
    cut = np.full(z.shape, -np.inf)
    cut[..., list(ids)] = z[..., list(ids)]
    z = cut
  top = z.max(-1, keepdims=True)
  return z - top - np.log(np.exp(z - top).sum(-1, keepdims=True))
