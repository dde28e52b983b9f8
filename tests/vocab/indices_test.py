"""The two indices against slow, literal versions of what they say."""

import collections
import math

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.vocab import indices as lib

V = 30
TAIL = np.array([1, 4, 5, 9, 12, 13, 20, 21, 28])


@pytest.mark.parametrize('block', [7, 30, 64])
def test_semantic_is_the_nearest_of_the_tail(block):
  """For every token, whatever the blocks; catches rows of the last block that
  stand elsewhere, a token that is its own neighbour, and a mean left in."""
  rows = np.random.default_rng(0).normal(size=(V, 8)) + 2
  rows[13] *= 1e-3  # an untrained row
  got = lib.build_semantic(rows, TAIL[::-1], 3, block=block, drop=0.1)
  unit = rows - rows.mean(0)
  unit /= np.linalg.norm(unit, axis=1, keepdims=True)
  for a in range(V):
    ids = [v for v in TAIL if v not in (a, 13)]
    best = sorted(ids, key=lambda v: -unit[a] @ unit[v])[:3]
    want = [(v, unit[a] @ unit[v]) for v in best if unit[a] @ unit[v] > 0]
    keep = np.asarray(got.id_VC[a]) >= 0
    assert np.asarray(got.id_VC[a])[keep].tolist() == [v for v, _ in want]
    np.testing.assert_allclose(
      got.weight_VC[a][keep], [w for _, w in want], atol=1e-3
    )
    assert not np.asarray(got.weight_VC[a])[~keep].any()


def literal(texts, k, window, least, skip):
  """The formulas of `build_statistical`, pair by pair."""
  count = collections.Counter(t for text in texts for t in text)
  frequent = sorted(range(V), key=lambda t: (-count[t], t))[:skip]
  pairs = collections.Counter()
  for text in texts:
    for i, a in enumerate(text):
      for v in text[i + 1 : i + 1 + window]:
        if v in TAIL and a not in frequent:
          pairs[a, v] += 1
  total = sum(n**0.75 for n in count.values())
  found = collections.defaultdict(list)
  for (a, v), n in pairs.items():
    expected = count[a] * window * count[v] ** 0.75 / total
    ppmi = math.log(n / expected)
    if n >= least and ppmi > 0:
      found[a].append((-ppmi * math.log1p(n), v, ppmi))
  return {
    a: [
      (v, ppmi / max(p for *_, p in sorted(row)[:k]))
      for _, v, ppmi in sorted(row)[:k]
    ]
    for a, row in found.items()
  }


def test_statistical_is_ppmi():
  """Catches pairs across texts or behind the window, and a wrong direction."""
  rng = np.random.default_rng(1)
  texts = [
    (rng.integers(0, V, size=60) // rng.integers(1, 4)).tolist()
    for _ in range(12)
  ]
  got = lib.build_statistical(
    [*texts, []], TAIL, V, 3, window=4, least=3, skip=2
  )
  want = literal(texts, 3, 4, 3, 2)
  assert len(want) > 10
  for a in range(V):
    pairs = want.get(a, [])
    n = len(pairs)
    assert got.id_VC[a].tolist() == [v for v, _ in pairs] + [-1] * (3 - n)
    weights = [w for _, w in pairs] + [0] * (3 - n)
    np.testing.assert_allclose(got.weight_VC[a], weights, atol=1e-3)


def test_files_come_back(tmp_path):
  made = lib.Indices(
    semantic=lib.Index(
      id_VC=jnp.arange(6, dtype=jnp.int32).reshape(3, 2),
      weight_VC=jnp.ones((3, 2), jnp.float16) / 3,
    )
  )
  path = tmp_path / 'indices.safetensors'
  lib.save_indices(made, path, corpus='c')
  got = lib.load_indices(str(path))
  assert got.statistical is None
  np.testing.assert_array_equal(got.semantic.id_VC, made.semantic.id_VC)
  np.testing.assert_array_equal(got.semantic.weight_VC, made.semantic.weight_VC)
  assert got.semantic.weight_VC.dtype == jnp.float16
  with pytest.raises(ValueError, match='is no file'):
    lib.load_indices(tmp_path / 'none')
  path.write_bytes(b'x')
  with pytest.raises(ValueError, match='no safetensors file'):
    lib.load_indices(path)


def test_no_pair_is_no_error():
  """Only frequent tokens, or a text of one: neighbours are missing."""
  for texts, skip in (([[0, 1, 2] * 9], V), ([[3]], 0)):
    got = lib.build_statistical(texts, TAIL, V, 3, skip=skip)
    assert (np.asarray(got.id_VC) == -1).all()
    assert not np.asarray(got.weight_VC).any()


def test_nothing_to_build_from_is_refused():
  """A list of all tokens leaves no tail; an empty corpus no texts."""
  rows_VD = jnp.ones((V, 2))
  for build in (
    lambda tail_I, k: lib.build_semantic(rows_VD, tail_I, k),
    lambda tail_I, k: lib.build_statistical([[0, 1]], tail_I, V, k),
  ):
    with pytest.raises(ValueError, match='tail holds 0 tokens'):
      build(lib.tail_of(range(V), V), 3)
    with pytest.raises(ValueError, match='ids from 0 to'):
      build(np.array([V]), 3)
    with pytest.raises(ValueError, match='k is 0'):
      build(TAIL, 0)
  with pytest.raises(ValueError, match='no texts'):
    lib.build_statistical([], TAIL, V)


def test_tail_is_what_is_left():
  assert lib.tail_of([3, 0], 5).tolist() == [1, 2, 4]
