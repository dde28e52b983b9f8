"""Top candidates for Ampere, Ada and Hopper: Pallas on Triton.

Logits live in registers, a tile at a time; each program keeps a list for its
span of the vocabulary, and plain JAX merges the lists.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

from pallas_kernels import dispatch
from pallas_kernels.top_candidates import best_list

Array = jax.Array
MOST = 128  # candidates: a list stays in registers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
  """`rows` x `tokens` logits at a time, summed over `width` at a time."""

  rows: int
  tokens: int = 128
  width: int = 64
  spans: int = 132  # one for each core of a large GPU
  stages: int = 3
  warps: int = 4


def tiles_for(rows: int) -> Tiles:
  """A rule of thumb; none was measured on a device."""
  block = min(max(16, pl.next_power_of_2(rows)), 64)
  return Tiles(rows=block, warps=8 if block == 64 else 4)


def refuses(hidden_BWD, head_VD, *, count) -> str | None:
  """Why this backend cannot do a call of `api.top_candidates`, or None."""
  allowed = jnp.bfloat16, jnp.float16, jnp.float32
  if why := dispatch.dtypes_refused(
    allowed, ('hidden', hidden_BWD), ('the head', head_VD)
  ):
    return why
  if count > MOST:
    return f'{count} candidates are more than {MOST}'
  if head_VD.shape[0] >= best_list.MOST_COLUMNS or head_VD.size >= 2**31:
    return f'a head of {head_VD.shape} is too large'
  return None


def top_candidates_triton(
  hidden_BWD: Array,
  head_VD: Array,
  *,
  count: int,
  tiles: Tiles | None = None,
  interpret: bool = False,
) -> tuple[Array, Array]:
  """See `api.top_candidates`."""
  b, w, d = hidden_BWD.shape
  rows, vocab = b * w, head_VD.shape[0]
  tiles = tiles_for(rows) if tiles is None else tiles
  total = pl.cdiv(vocab, tiles.tokens)
  spans = min(tiles.spans, total)
  size = pl.next_power_of_2(count)
  lists = pl.BlockSpec((None, tiles.rows, size), lambda s, i: (s, i, 0))
  sums = pl.BlockSpec((None, tiles.rows), lambda s, i: (s, i))
  values, columns, top, mass = pl.pallas_call(
    functools.partial(
      _kernel, tiles=tiles, spans=spans, count=count, shape=(rows, vocab, d)
    ),
    grid=(spans, pl.cdiv(rows, tiles.rows)),
    in_specs=[
      pl.BlockSpec((rows, d), lambda s, i: (0, 0)),
      pl.BlockSpec((vocab, d), lambda s, i: (0, 0)),
    ],
    out_specs=[lists, lists, sums, sums],
    out_shape=[
      jax.ShapeDtypeStruct((spans, rows, size), jnp.float32),
      jax.ShapeDtypeStruct((spans, rows, size), jnp.float32),
      jax.ShapeDtypeStruct((spans, rows), jnp.float32),
      jax.ShapeDtypeStruct((spans, rows), jnp.float32),
    ],
    compiler_params=pltriton.CompilerParams(
      num_warps=tiles.warps, num_stages=tiles.stages
    ),
    interpret=interpret,
    name='top_candidates',
  )(hidden_BWD.reshape(rows, d), head_VD)
  side_by_side = lambda x: x[..., :count].swapaxes(0, 1).reshape(rows, -1)
  logit, token = best_list.in_order(
    side_by_side(values), side_by_side(columns), count
  )
  logq = logit - jax.nn.logsumexp(top + jnp.log(mass), axis=0)[:, None]
  shape = (b, w, count)
  return token.reshape(shape), logq.reshape(shape)


def _kernel(
  hidden_ref,  # [R, D]
  head_ref,  # [V, D]
  values_ref,  # float32[rows, C]
  columns_ref,  # float32[rows, C]
  top_ref,  # float32[rows]
  mass_ref,  # float32[rows]
  *,
  tiles: Tiles,
  spans: int,
  count: int,
  shape: tuple[int, int, int],
):
  r, v, d = shape
  exact = lax.Precision.HIGHEST if head_ref.dtype == jnp.float32 else None
  span, first_row = pl.program_id(0), pl.program_id(1) * tiles.rows
  inside = first_row + jnp.arange(tiles.rows) < r

  def logits_of(first):
    def add(i, x):
      at = i * tiles.width
      real = at + jnp.arange(tiles.width) < d

      def load(ref, start, size, end):
        there = start + jnp.arange(size) < end
        return pltriton.load(
          ref.at[pl.ds(start, size), pl.ds(at, tiles.width)],
          mask=there[:, None] & real[None, :],
          other=0,
        )

      return x + pltriton.dot(
        load(hidden_ref, first_row, tiles.rows, r),
        load(head_ref, first, tiles.tokens, v),
        trans_b=True,
        precision=exact,
      )

    zero = jnp.zeros((tiles.rows, tiles.tokens), jnp.float32)
    x = lax.fori_loop(0, pl.cdiv(d, tiles.width), add, zero)
    token = first + jnp.arange(tiles.tokens)
    return jnp.where((token < v)[None, :], x, -jnp.inf)

  def one_tile(i, carry):
    values, columns, top, mass = carry
    first = i * tiles.tokens
    x = logits_of(first)
    higher = jnp.maximum(top, jnp.max(x, axis=1))
    mass *= jnp.exp(top - higher)
    mass += jnp.sum(jnp.exp(x - higher[:, None]), axis=1)

    def take(_, carry):
      return best_list.take(carry[0], first.astype(jnp.float32), *carry[1:])

    # Triton's compiler crashes on a `while` whose end is found on the way.
    new = best_list.arrivals(x, values, count)
    _, values, columns = lax.fori_loop(0, new, take, (x, values, columns))
    return values, columns, higher, mass

  total = pl.cdiv(v, tiles.tokens)
  each = pl.cdiv(total, spans)
  size = values_ref.shape[1]
  carry = (
    *best_list.empty(tiles.rows, size, count),
    jnp.full((tiles.rows,), -jnp.finfo(jnp.float32).max),
    jnp.zeros((tiles.rows,), jnp.float32),
  )
  end = jnp.minimum((span + 1) * each, total)
  carry = lax.fori_loop(span * each, end, one_tile, carry)
  values, columns, top, mass = carry
  pltriton.store(values_ref, values, mask=inside[:, None])
  pltriton.store(columns_ref, columns, mask=inside[:, None])
  pltriton.store(top_ref, top, mask=inside)
  pltriton.store(mass_ref, mass, mask=inside)
