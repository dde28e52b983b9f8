"""Calls of tree attention that differ in every pair of settings.

The kernels' numbers are compared with the reference in float32 on the same
(rounded) inputs; slots past the length hold NaN.
"""

import dataclasses
import functools
import itertools
import random

import jax.numpy as jnp
import numpy as np

from experiments.gpu.kernel_cases import NEAR, tree_mask
from pallas_kernels.tree_attention.xla import tree_attention_xla

SLOTS = 192  # three tiles of 64, and no multiple of 128
SETTINGS = {
  't': (1, 2, 7, 16, 17, 33, 64, 65, 256),
  'head_dim': (64, 80, 96, 128),
  'group': (1, 3, 4, 8),
  'dtype': ('bfloat16', 'float32'),
  'lengths': ('none', 'one', 'ragged', 'full'),
  'mask': ('alone', 'tree', 'later', 'causal', 'full'),
}
LENGTHS = {
  'none': (0, 0),
  'one': (1, 0),
  'ragged': (37, SLOTS - 1),
  'full': (SLOTS, 128),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """One call: two sequences, and two KV heads where they are not shared.

  Masks: `alone` is one visible key per row; `later` is a tree's second level,
  which sees five rows of an earlier pass; `full` a block-diffusion drafter's.
  """

  t: int
  head_dim: int
  group: int
  dtype: str
  lengths: str
  mask: str

  def __str__(self):
    return '-'.join(map(str, dataclasses.astuple(self)))


@functools.cache
def cover(**fixed) -> tuple[Case, ...]:
  """Cases in which every two values of two settings meet, greedily chosen.

  Args:
    **fixed: settings with fewer values than `SETTINGS` has.
  """
  settings = SETTINGS | fixed
  names = [*settings]
  pairs = list(itertools.combinations(range(len(names)), 2))
  met = lambda case: {(i, j, case[i], case[j]) for i, j in pairs}
  missing = set().union(*map(met, itertools.product(*settings.values())))
  rng, chosen = random.Random(0), []
  while missing:
    tries = [[rng.choice(v) for v in settings.values()] for _ in range(150)]
    i, j, x, y = rng.choice(sorted(missing, key=str))
    for case in tries:
      case[i], case[j] = x, y  # so that each step gains
    best = max(tries, key=lambda case: len(met(case) & missing))
    missing -= met(best)
    chosen.append(Case(**dict(zip(names, best, strict=True))))
  return tuple(chosen)


def new_rows_mask(kind: str, t: int, rng) -> np.ndarray:
  """bool[2, T, N]."""
  one = np.eye(t, dtype=bool)
  masks = {
    'alone': one,
    'causal': np.tril(np.ones((t, t), bool)),
    'full': np.ones((t, t), bool),
  }
  if kind in masks:
    return np.stack([masks[kind]] * 2)
  both = np.stack([tree_mask(t, rng) for _ in range(2)])
  if kind == 'tree':
    return both
  earlier = rng.random((2, t, 5)) < 0.5
  return np.concatenate([earlier, both], axis=2)


def arrays(case: Case, dead=np.nan):
  """The op's seven arguments; dead slots of the cache hold `dead`."""
  rng = np.random.default_rng(case.t)
  mask_BTN = new_rows_mask(case.mask, case.t, rng)
  k = 2 if case.group == 1 else 1
  normal = lambda *shape: rng.normal(size=(2, *shape, case.head_dim))
  q = normal(case.t, k * case.group)
  caches = [normal(k, SLOTS) for _ in range(2)]
  new = [normal(k, mask_BTN.shape[2]) for _ in range(2)]
  length_B = np.array(LENGTHS[case.lengths], np.int32)
  past = np.arange(SLOTS) >= length_B[:, None]
  caches = [np.where(past[:, None, :, None], dead, x) for x in caches]
  as_given = lambda x: jnp.asarray(x, case.dtype)
  return (
    as_given(q),
    *map(as_given, caches),
    jnp.asarray(length_B),
    *map(as_given, new),
    jnp.asarray(mask_BTN),
  )


def check_dead_slots(run) -> None:
  """What they hold changes no bit."""
  case = Case(17, 80, 4, 'bfloat16', 'ragged', 'tree')
  nan, zero = (run(*arrays(case, dead), scale=0.1) for dead in (np.nan, 0.0))
  assert (np.asarray(nan) == np.asarray(zero)).all()


def check(case: Case, run) -> None:
  """Compares `run(*args, scale=)` with the reference in float32."""
  args = arrays(case)
  scale = case.head_dim**-0.5
  exact = [x.astype('float32') if x.ndim == 4 else x for x in args]
  want = np.asarray(tree_attention_xla(*exact, scale=scale))
  got = run(*args, scale=scale)
  assert got.dtype == case.dtype
  assert np.isfinite(want).all()
  near = NEAR if case.dtype == 'bfloat16' else dict(atol=2e-5)
  np.testing.assert_allclose(np.asarray(got, np.float32), want, **near)
