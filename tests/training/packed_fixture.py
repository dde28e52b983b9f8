"""Texts packed into rows, and what every objective on them must stand."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.training import step
from specjax.training.batch import Batch
from specjax.types import Accepted, Context, Frontier, Round, Sampling

KEY = jax.random.key(0)


def packed(texts, token_BT):
  """These tokens as a batch.

  `texts` are (length, first wanted token) of the texts of each row; the rest of
  a row is padding.
  """
  text_BT, position_BT, wanted_BT = np.zeros((3, *token_BT.shape), np.int32)
  for b, row in enumerate(texts):
    first = 0
    for i, (n, wanted) in enumerate(row):
      text_BT[b, first : first + n] = i + 1
      position_BT[b, first : first + n] = np.arange(n)
      wanted_BT[b, first + wanted : first + n] = 1
      first += n
  arrays = (token_BT, wanted_BT.astype(bool), text_BT, position_BT)
  return Batch(*map(jnp.asarray, arrays))


def random_texts(texts, vocab, length, seed=0):
  """Random tokens, padding too."""
  rng = np.random.default_rng(seed)
  token_BT = rng.integers(0, vocab, (len(texts), length))
  return packed(texts, token_BT.astype(np.int32))


@functools.partial(jax.jit, static_argnums=0)
def measured(objective, params, texts, fixed, mass_K=None):
  """((loss, figures), gradient), mass."""
  mass = objective.mass(fixed, texts, KEY)
  total = jnp.maximum(mass if mass_K is None else mass_K, 1e-9)
  learned, rest = step._split(params)
  run = lambda p: objective.loss(step._join(p, rest), fixed, texts, KEY, total)
  return jax.value_and_grad(run, has_aux=True)(learned), mass


def check_micro_batches(objective, params, texts, fixed):
  """Two rows, one by one, add up to both."""
  ((loss, _), grads), mass_K = measured(objective, params, texts, fixed)
  rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], texts) for i in (0, 1)]
  parts = [measured(objective, params, x, fixed, mass_K) for x in rows]
  np.testing.assert_allclose(sum(x[1] for x in parts), mass_K)
  np.testing.assert_allclose(sum(x[0][0][0] for x in parts), loss, rtol=1e-5)
  added = jax.tree.map(jnp.add, *(x[0][1] for x in parts))
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  jax.tree.map(close, added, grads)


def check_unseen(objective, params, texts, fixed, kept, changed, vocab):
  """Where only `kept` is wanted of row 0, other tokens at `changed` are not
  seen: loss, figures and slopes stay."""
  texts = jax.tree.map(lambda x: x[:1], texts)
  only = np.zeros(texts.wanted_BT.shape, bool)
  only[:, kept] = True
  texts = texts.replace(wanted_BT=texts.wanted_BT & only)
  token_BT = texts.token_BT.at[0, jnp.asarray(changed)].add(7) % vocab
  one, _ = measured(objective, params, texts, fixed)
  two, _ = measured(objective, params, texts.replace(token_BT=token_BT), fixed)
  assert one[0][0] > 0
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, one, two)


@functools.partial(jax.jit, static_argnames=('drafter', 'ask', 'vocab'))
def decoded(drafter, params, target, token_BT, root_B, taps_BTE, *, ask, vocab):
  """float32[B, S, V]: laws at the root and below it, along the text.

  The prompt is what stands before the root; every draft is the true token.
  """
  b, t = token_BT.shape
  zeros, ones = jnp.zeros(b), jnp.ones(b, jnp.int32)
  round = Round(
    context=Context(token_BT, root_B + 1),
    key_B=sampling.row_keys(range(b)),
    noise_BPV=None,
    sampling=Sampling(zeros, ones, zeros, zeros, all_greedy=True),
  )
  dead_BT = jnp.arange(t) >= root_B[:, None]
  if taps_BTE is not None:
    taps_BTE = jnp.where(dead_BT[..., None], 9.0, taps_BTE)
  prompt = Accepted(
    token_BP=jnp.where(dead_BT, 3, token_BT),
    start_B=jnp.zeros(b, jnp.int32),
    length_B=root_B,
    taps_BPE=taps_BTE,
  )
  call = lambda f, *x: f(params, target, *x)
  state = drafter.start(params, target, b, t + 8)
  state = call(drafter.commit, state, None, prompt)
  found, scratch = call(drafter.begin, state, round, ask)
  laws = [found]
  for depth in range(1, ask.depth):
    at_B1 = jnp.minimum(root_B + depth, t - 1)[:, None]
    frontier = Frontier(
      token_BW=jnp.take_along_axis(token_BT, at_B1, axis=1),
      row_BW=jnp.zeros((b, 1), jnp.int32),
      depth=depth,
    )
    found, scratch = call(drafter.expand, scratch, frontier)
    laws.append(found)
  put = jax.vmap(lambda i, x: jnp.zeros(vocab).at[i].set(x))
  spread = lambda x: put(x.token_BWC[:, 0], x.logq_BWC[:, 0])
  return jnp.stack([spread(x) for x in laws], axis=1)
