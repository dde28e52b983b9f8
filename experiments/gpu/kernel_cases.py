"""Calls of the kernels that `experiments/gpu/kernels.py` checks and times.

A checked call is compared with the plain reference in float32 on the same
rounded inputs, which are fresh random numbers; cache slots past the length hold
NaN; two runs must agree in every bit. A timed call takes turns with XLA's form
of the op. Each function takes sizes, a seed, its own settings and a form of the
op, and returns facts by name.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import pieces
from experiments.timing import interleaved
from pallas_kernels.keep_rows.xla import keep_rows_xla
from pallas_kernels.top_candidates.xla import top_candidates_xla
from pallas_kernels.tree_attention.xla import tree_attention_xla

NEAR = dict(rtol=1e-2, atol=6e-3)  # rounded to bfloat16
NEAR_LOGQ = 2e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """Of a model's layers, and what is checked and timed."""

  heads: tuple[int, int] = (32, 8)  # of queries, of keys; Qwen3-8B
  head_dim: int = 128
  width: int = 4096
  vocab: int = 151936
  layers: int = 36
  slots: int = 8192
  checked: tuple[tuple[int, str], ...] = (  # new rows and their mask
    (1, 'tree'),
    (16, 'full'),
    (65, 'tree'),
    (256, 'causal'),
  )
  timed: tuple[int, ...] = (1, 16, 65)  # new rows
  best: tuple[tuple[int, int], ...] = ((1, 1), (15, 64))  # rows, candidates
  caches: int = 8  # read in turn, so that none is found on chip
  inner: int = 20  # runs per turn
  turns: int = 5


TINY = Sizes(
  heads=(4, 2),
  head_dim=16,
  width=32,
  vocab=300,
  layers=2,
  slots=128,
  checked=((5, 'tree'),),
  timed=(5,),
  best=((3, 4),),
  caches=2,
  inner=2,
  turns=1,
)


def attention(
  sizes: Sizes, seed: int, t: int, mask: str, form
) -> dict[str, Any]:
  """Three sequences: no cache, a full one, and one that fills no tile."""
  lengths = (0, sizes.slots, sizes.slots // 2 - 3)
  args = _attention_arrays(sizes, seed, t, mask, lengths)
  scale = sizes.head_dim**-0.5
  got, same = _twice(functools.partial(form, scale=scale), args)
  exact = [x.astype('float32') if x.ndim == 4 else x for x in args]
  want = _exact(functools.partial(tree_attention_xla, scale=scale), exact)
  got, want = np.asarray(got, np.float32), np.asarray(want)
  error = float(np.max(np.abs(got - want)))
  near = np.isfinite(want).all() and np.allclose(got, want, **NEAR)
  return _facts(error, same, None if near else 'is not the reference')


def _attention_arrays(sizes: Sizes, seed: int, t: int, mask: str, lengths):
  """The op's seven arguments; slots past the length are NaN."""
  rngs = [np.random.default_rng([seed, i]) for i in range(len(lengths))]
  length_B = jnp.asarray(lengths, jnp.int32)
  arrays = _rows_and_caches(jax.random.key(seed), length_B, sizes=sizes, t=t)
  return *arrays, jnp.asarray(np.stack([_mask(mask, t, rng) for rng in rngs]))


@functools.partial(jax.jit, static_argnames=('sizes', 't'))
def _rows_and_caches(key, length_B, *, sizes: Sizes, t: int):
  (q, k), b = sizes.heads, length_B.shape[0]
  keys = iter(jax.random.split(key, 5))
  normal = lambda *shape: jax.random.normal(
    next(keys), (b, *shape, sizes.head_dim), jnp.bfloat16
  )
  dead_BS = jnp.arange(sizes.slots) >= length_B[:, None]
  cache = lambda: jnp.where(
    dead_BS[:, None, :, None], jnp.nan, normal(k, sizes.slots)
  )
  caches = cache(), cache()
  return normal(t, q), *caches, length_B, normal(k, t), normal(k, t)


def _mask(kind: str, t: int, rng: np.random.Generator) -> np.ndarray:
  """bool[T, T]."""
  if kind == 'full':
    return np.ones((t, t), bool)
  if kind == 'causal':
    return np.tril(np.ones((t, t), bool))
  return tree_mask(t, rng)


def tree_mask(t: int, rng: np.random.Generator) -> np.ndarray:
  """bool[T, T]: a row of a random tree sees itself and what its parent sees."""
  mask = np.eye(t, dtype=bool)
  for row in range(1, t):
    mask[row] |= mask[rng.integers(row)]
  return mask


def attention_ms(sizes: Sizes, seed: int, t: int, form) -> dict[str, Any]:
  """One call in the middle of decoding, batch 1, all slots full."""
  args = [
    _attention_arrays(sizes, seed + i, t, 'tree', [sizes.slots])
    for i in range(sizes.caches)
  ]

  def step_of(form):
    def step(ok, kept, args):
      length_B = jnp.where(ok, args[0][3], 1)
      out = [
        form(*x[:3], length_B, *x[4:], scale=sizes.head_dim**-0.5) for x in args
      ]
      return kept, out

    return step

  read = sum(x.nbytes for x in args[0]) + args[0][0].nbytes
  return _times(
    step_of, (form, tree_attention_xla), (), (args,), sizes, read, sizes.caches
  )


def candidates(sizes: Sizes, seed: int, w: int, c: int, form) -> dict[str, Any]:
  """The same probabilities; near ties may stand in another order."""
  args = _hidden_and_head(sizes, seed, w)
  (token, logq), same = _twice(functools.partial(form, count=c), args)
  exact = [x.astype('float32') for x in args]
  score = lambda x, y: jax.nn.log_softmax(x[0] @ y.T, axis=-1)
  want_WV = np.asarray(_exact(score, exact))
  token_WC, logq_WC = np.asarray(token)[0], np.asarray(logq)[0]
  best_WC = -np.sort(-want_WV, axis=-1)[:, :c]
  own_WC = np.take_along_axis(want_WV, token_WC, axis=-1)
  error = float(np.max(np.abs(np.stack([best_WC, own_WC]) - logq_WC)))
  twice = any(len(set(row)) < c for row in token_WC.tolist())
  why = None if error < NEAR_LOGQ else 'is not the reference'
  return _facts(error, same, 'has a token twice' if twice else why)


def _hidden_and_head(sizes: Sizes, seed: int, w: int):
  @jax.jit
  def made(key):
    first, second = jax.random.split(key)
    normal = lambda key, *shape: jax.random.normal(key, shape, jnp.bfloat16)
    head = normal(second, sizes.vocab, sizes.width) * sizes.width**-0.5
    return normal(first, 1, w, sizes.width), head

  return made(jax.random.key(seed))


def candidates_ms(
  sizes: Sizes, seed: int, w: int, c: int, form
) -> dict[str, Any]:
  args = _hidden_and_head(sizes, seed, w)

  def step_of(form):
    def step(ok, kept, hidden, head):
      return kept, form(pieces.after(ok, hidden), head, count=c)

    return step

  read = sum(x.nbytes for x in args)
  return _times(step_of, (form, top_candidates_xla), (), args, sizes, read)


def keep(sizes: Sizes, seed: int, form) -> dict[str, Any]:
  """Bit for bit, into a cache of NaN."""
  small = dataclasses.replace(sizes, layers=min(sizes.layers, 4))
  rows, starts = _new_rows(small, seed, 2), (5, small.slots - 16)
  shape = (*rows.shape[:3], small.slots, small.head_dim)
  cache = jnp.full(shape, jnp.nan, rows.dtype)
  got, same = _twice(form, (cache, rows, jnp.asarray(starts, jnp.int32)))
  want = np.array(cache)
  for b, start in enumerate(starts):
    want[:, b, :, start : start + 16] = np.asarray(rows)[:, b]
  equal = np.asarray(got).tobytes() == want.tobytes()
  return _facts(0.0, same, None if equal else 'wrote something else')


def _new_rows(sizes: Sizes, seed: int, b: int):
  shape = (sizes.layers, b, sizes.heads[1], 16, sizes.head_dim)
  return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def keep_ms(sizes: Sizes, seed: int, form) -> dict[str, Any]:
  rows = _new_rows(sizes, seed, 1)
  shape = (*rows.shape[:3], sizes.slots, sizes.head_dim)
  cache, start_B = jnp.zeros(shape, rows.dtype), jnp.asarray([5], jnp.int32)

  def step_of(form):
    def step(ok, cache, rows, start_B):
      cache = form(cache, rows, jnp.where(ok, start_B, 0))
      return cache, cache[0, 0, 0, 5]

    return step

  args, moved = (rows, start_B), 2 * rows.nbytes
  return _times(step_of, (form, keep_rows_xla), cache, args, sizes, moved)


def _times(
  step_of, forms, kept, args, sizes: Sizes, moved: int, calls: int = 1
):
  """Milliseconds of a call of two forms in turns, and the bytes it must move.

  `step_of(form)` makes a run for `pieces.job`, of so many calls.
  """
  jobs = {
    name: pieces.job(step_of(form), kept, args, sizes.inner)
    for name, form in zip(('ms', 'xla_ms'), forms, strict=True)
  }
  seconds = interleaved(jobs, repeats=sizes.turns)
  each = 1000 / (sizes.inner * calls)
  ms = {name: each * statistics.median(x) for name, x in seconds.items()}
  return {'ok': True, 'bytes': moved} | ms


def _twice(run, args) -> tuple[Any, bool]:
  """An outcome, and whether another run gives the same bits."""
  program = jax.jit(run)
  one, two = jax.device_get((program(*args), program(*args)))
  bits = lambda tree: [x.tobytes() for x in jax.tree.leaves(tree)]
  return one, bits(one) == bits(two)


def _exact(run, args) -> jax.Array:
  """In float32 throughout: a GPU's default is shorter."""
  with jax.default_matmul_precision('highest'):
    return jax.jit(run)(*args)


def _facts(error: float, same: bool, why: str | None) -> dict[str, Any]:
  why = why or (None if same else 'two runs differ')
  error = error if np.isfinite(error) else None  # JSON has no other numbers
  return {'ok': why is None, 'error': error, 'same_bits': same, 'why': why}
