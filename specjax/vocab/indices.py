"""Which rare tokens another token brings to mind; built once, on the host.

Both indices give every token its neighbours among the tail, the tokens outside
the fixed list. What the paper's two indices (EvoSpec, arXiv:2605.27390) are is
not known to us; these are our own choice.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from pallas_kernels.top_k import top_k
from specjax.checks import check_whole
from specjax.drafters.vocab_buffer import Index
from specjax.types import Array, struct
from specjax.vocab.ranks import count_tokens
from specjax.weights.files import write_tensors

FORMAT = 'specjax vocabulary indices'


@struct
class Indices:
  """By meaning and by co-occurrence; either may be missing."""

  semantic: Index | None = None
  statistical: Index | None = None


def tail_of(id_I: Sequence[int], vocab: int) -> np.ndarray:
  """int32: all tokens outside a list, ascending."""
  return np.setdiff1d(np.arange(vocab, dtype=np.int32), np.asarray(id_I))


def build_semantic(
  rows_VD: Array,
  tail_I: np.ndarray,
  k: int = 16,
  *,
  block: int = 1024,
  drop: float = 0.01,
) -> Index:
  """The k nearest tail tokens by cosine of mean-free output rows.

  Args:
    rows_VD: of the target's or the drafter's head.
    tail_I: int, ids that may be neighbours. A token is none of its own.
    k: neighbours per token.
    block: rows multiplied at once.
    drop: share of the tail with the shortest rows that is left out: rows that
      were hardly trained are near anything.

  Returns:
    Weights are cosines; what is not above 0 is no neighbour.

  Raises:
    ValueError: no tail, or no neighbours asked for.
  """
  _check(tail_I, k, rows_VD.shape[0])
  rows_VD = jnp.asarray(rows_VD, jnp.float32)
  tail_I = np.sort(np.asarray(tail_I, np.int32))
  length_I = np.asarray(jnp.linalg.norm(rows_VD[tail_I], axis=1))
  tail_I = jnp.asarray(tail_I[length_I >= np.quantile(length_I, drop)])
  k = min(k, len(tail_I))
  rows_VD = rows_VD - jnp.mean(rows_VD, axis=0)
  norm_V1 = jnp.linalg.norm(rows_VD, axis=1, keepdims=True)
  unit_VD = rows_VD / jnp.maximum(norm_V1, 1e-12)
  tail_ID = unit_VD[tail_I]

  @jax.jit
  def nearest(unit_ND, id_N):
    cosine_NI = jnp.einsum('nd,id->ni', unit_ND, tail_ID)
    cosine_NI = jnp.where(id_N[:, None] == tail_I, -1, cosine_NI)
    best_NC, at_NC = top_k(cosine_NI, k)
    return jnp.where(best_NC > 0, tail_I[at_NC], -1), jnp.maximum(best_NC, 0)

  vocab, ids, weights = rows_VD.shape[0], [], []
  for first in range(0, vocab, block):
    # The last block starts earlier, so that all share one program.
    first = max(0, min(first, vocab - block))
    id_N = jnp.arange(first, min(first + block, vocab), dtype=jnp.int32)
    id_NC, weight_NC = nearest(unit_VD[id_N], id_N)
    skip = sum(map(len, ids)) - first
    ids.append(np.asarray(id_NC)[skip:])
    weights.append(np.asarray(weight_NC, np.float16)[skip:])
  return Index(
    id_VC=jnp.asarray(np.concatenate(ids)),
    weight_VC=jnp.asarray(np.concatenate(weights)),
  )


def build_statistical(
  texts: Iterable[Sequence[int]],
  tail_I: np.ndarray,
  vocab: int,
  k: int = 16,
  *,
  window: int = 32,
  least: int = 5,
  smooth: float = 0.75,
  skip: int = 256,
) -> Index:
  """Tail tokens that follow a token more often than chance has it.

  c(a, v) counts pairs with v at most `window` tokens behind a; chance expects
  c(a) window P(v) of them, P(v) ~ c(v)^smooth (Levy, Goldberg & Dagan, TACL
  2015). Weights are positive pointwise mutual information, log(c(a, v) /
  expected), over the row's largest; the k that are kept have the largest
  PPMI log(1 + c).

  Args:
    texts: ids of each text; none of what is to be measured.
    tail_I: int, ids that may be neighbours.
    vocab: tokens of the target.
    k: neighbours per token.
    window: tokens.
    least: rarer pairs are chance.
    smooth: exponent, below 1 it favours rare tokens less.
    skip: so many of the most frequent tokens have no neighbours: they carry no
      topic.

  Raises:
    ValueError: no tail, no neighbours asked for, or no texts.
  """
  _check(tail_I, k, vocab)
  texts = [np.asarray(ids, np.int64) for ids in texts]
  if not texts:
    raise ValueError('there are no texts; give at least one.')
  count_V = count_tokens(texts, vocab)
  frequent = np.argsort(-count_V, kind='stable')[:skip]
  source_V = ~np.isin(np.arange(vocab), frequent)
  tail_V = np.isin(np.arange(vocab), np.asarray(tail_I))
  pair_A, count_A = _pairs(texts, source_V, tail_V, window)
  pair_A, count_A = pair_A[count_A >= least], count_A[count_A >= least]
  a_A, v_A = np.divmod(pair_A, vocab)
  share_V = count_V**smooth
  share_V = share_V / max(share_V.sum(), 1)
  expected_A = count_V[a_A] * window * share_V[v_A]
  ppmi_A = np.maximum(np.log(count_A / np.maximum(expected_A, 1e-12)), 0)
  id_VC = np.full((vocab, k), -1, np.int32)
  weight_VC = np.zeros((vocab, k), np.float16)
  rank_A = ppmi_A * np.log1p(count_A)
  order_A = np.lexsort((v_A, -rank_A, a_A))
  order_A = order_A[ppmi_A[order_A] > 0]
  found_V, first = np.unique(a_A[order_A], return_index=True)
  ends = np.append(first, len(order_A))[1:]
  for a, start, end in zip(found_V, first, ends, strict=True):
    best = order_A[start:end][:k]
    id_VC[a, : len(best)] = v_A[best]
    weight_VC[a, : len(best)] = ppmi_A[best] / ppmi_A[best].max()
  return Index(id_VC=jnp.asarray(id_VC), weight_VC=jnp.asarray(weight_VC))


def _check(tail_I: np.ndarray, k: int, vocab: int) -> None:
  check_whole(1, k=k)
  if not len(tail_I) or not 0 <= np.min(tail_I) <= np.max(tail_I) < vocab:
    raise ValueError(
      f'the tail holds {len(tail_I)} tokens; give at least one, ids from 0 to '
      f'{vocab - 1}: a list with all tokens leaves no rare ones.'
    )


def _pairs(texts, source_V, tail_V, window) -> tuple[np.ndarray, np.ndarray]:
  """(a * V + v of every pair there is, how often), ascending."""
  vocab = len(tail_V)
  keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
  for distance in range(1, window + 1):
    new = []
    for ids in texts:
      a, v = ids[:-distance], ids[distance:]
      keep = source_V[a] & tail_V[v]
      new.append(a[keep] * vocab + v[keep])
    new, more = np.unique(np.concatenate(new), return_counts=True)
    keys, at = np.unique(np.concatenate([keys, new]), return_inverse=True)
    counts = np.bincount(
      at, weights=np.concatenate([counts, more]), minlength=len(keys)
    ).astype(np.int64)
  return keys, counts


def save_indices(
  indices: Indices, path: str | os.PathLike, *, corpus: str = ''
) -> None:
  """Writes a file as a whole; the reverse of `load_indices`."""
  tensors = {}
  for name in ('semantic', 'statistical'):
    index = getattr(indices, name)
    if index is not None:
      tensors[f'{name}_id'] = np.asarray(index.id_VC, np.int32)
      tensors[f'{name}_weight'] = np.asarray(index.weight_VC, np.float16)
  write_tensors(path, tensors, {'format': FORMAT, 'corpus': corpus})


def load_indices(path: str | os.PathLike) -> Indices:
  """Reads a file of `save_indices`.

  Raises:
    ValueError: there is none, or another one.
  """
  path = pathlib.Path(path).expanduser()
  if not path.is_file():
    raise ValueError(f'{path} is no file; give one of indices.')
  try:
    with safe_open(path, framework='numpy') as file:
      if (file.metadata() or {}).get('format') != FORMAT:
        raise ValueError(f'{path} holds no vocabulary indices.')
      names = set(file.keys())
      made = {
        name: Index(
          id_VC=jnp.asarray(file.get_tensor(f'{name}_id')),
          weight_VC=jnp.asarray(file.get_tensor(f'{name}_weight')),
        )
        for name in ('semantic', 'statistical')
        if f'{name}_id' in names
      }
  except SafetensorError as error:
    raise ValueError(f'{path} is no safetensors file ({error}).') from error
  return Indices(**made)
