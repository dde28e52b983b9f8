"""Parameters of an EAGLE-3 drafter, and the maps between vocabularies."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from specjax.drafters.eagle3.layout import Settings
from specjax.drafters.eagle3.names import canonical
from specjax.models import layers as nn
from specjax.models import transformer
from specjax.models.names import Tensor, layer_tensors
from specjax.types import Array, struct


@struct
class Weights:
  """What a checkpoint holds; `bind` puts `id_V` in the place of the maps."""

  fc_DE: Array
  hidden_norm_D: Array
  layers: tuple[nn.Layer, ...]  # one by one; the first reads twice the width
  norm_D: Array
  input_norm_E: Array | None
  fc_norm_AD: Array | None  # A: fused layers
  embed_VD: Array | None  # None: the target's
  head_VD: Array | None  # likewise; V are the draft vocabulary's rows
  d2t_V: Array | None  # int32, target id minus row
  t2d_V: Array | None  # int32, per target token: is it drafted?
  id_V: Array | None = None  # int32, target ids of the head's rows


def abstract(s: Settings, dtype) -> Weights:
  """Shapes of the parameters."""
  leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
  count = lambda n: jax.ShapeDtypeStruct((n,), jnp.int32)
  c, d, fused = s.config, s.config.width, len(s.inputs)
  like = transformer.abstract(c, dtype, stacked=False).layers
  single = lambda x: leaf(*x.shape[1:])
  layers = [jax.tree.map(single, layer) for layer in like]
  wide = lambda x: leaf(x.shape[0], 2 * d)
  first = layers[0]
  layers[0] = first.replace(
    q_OD=wide(first.q_OD), k_OD=wide(first.k_OD), v_OD=wide(first.v_OD)
  )
  return Weights(
    fc_DE=leaf(d, fused * s.target_width),
    hidden_norm_D=leaf(d),
    layers=tuple(layers),
    norm_D=leaf(d),
    input_norm_E=leaf(fused * s.target_width) if s.norm_before_fc else None,
    fc_norm_AD=leaf(fused, s.target_width) if s.fc_norm else None,
    embed_VD=leaf(c.vocab, d) if s.own_embedding else None,
    head_VD=leaf(s.draft_vocab, d) if s.own_head else None,
    d2t_V=count(s.draft_vocab) if s.offsets else None,
    t2d_V=count(c.vocab) if s.mask else None,
  )


def init(s: Settings, key: Array) -> Weights:
  """Random parameters; the drafted tokens are a random choice."""
  matrix_key, choice_key = jax.random.split(key)
  weights = transformer.init_like(abstract(s, s.config.dtype), matrix_key)
  id_V = jax.random.permutation(choice_key, s.config.vocab)[: s.draft_vocab]
  return unbind(s, weights.replace(id_V=jnp.sort(id_V).astype(jnp.int32)))


def tensors(s: Settings) -> list[Tensor]:
  """Where each parameter stands, under the names of this checkpoint."""
  fused = range(len(s.inputs))
  optional = [
    (s.norm_before_fc, Tensor('input_norm_E', ('input_norm.weight',))),
    (
      s.fc_norm,
      Tensor('fc_norm_AD', tuple(f'fc_norm.{i}.weight' for i in fused)),
    ),
    (s.own_embedding, Tensor('embed_VD', ('embed_tokens.weight',))),
    (s.own_head, Tensor('head_VD', ('lm_head.weight',))),
    (s.offsets, Tensor('d2t_V', ('d2t',))),
    (s.mask, Tensor('t2d_V', ('t2d',))),
  ]
  rows = [
    Tensor('fc_DE', ('fc.weight',)),
    Tensor('hidden_norm_D', ('midlayer.hidden_norm.weight',)),
    Tensor('norm_D', ('norm.weight',)),
    *(row for present, row in optional if present),
  ]
  for i in range(s.config.layers):
    rows += layer_tensors(
      f'layers.{i}', '', range(i, i + 1), qk_norm=s.config.qk_norm
    )
  spelt = dict(s.stored)
  as_stored = lambda name: spelt.get(canonical(name), canonical(name))
  return [row._replace(names=tuple(map(as_stored, row.names))) for row in rows]


def bind(s: Settings, params: Weights) -> Weights:
  """Parameters with absolute ids in the place of the maps.

  An embedding that is all zeros was left out on saving: the target's is read.

  Raises:
    ValueError: see `target_ids`.
  """
  embed_VD = params.embed_VD
  if embed_VD is not None and not bool(jnp.any(embed_VD)):
    if s.config.width != s.target_width:
      raise ValueError(
        "the drafter's embedding is all zeros, and the target's has another "
        'width; give a complete checkpoint.'
      )
    embed_VD = None
  id_V = target_ids(params.d2t_V, params.t2d_V, s.draft_vocab, s.config.vocab)
  return params.replace(
    embed_VD=embed_VD,
    d2t_V=None,
    t2d_V=None,
    id_V=None if id_V is None else jnp.asarray(id_V),
  )


def unbind(s: Settings, params: Weights) -> Weights:
  """The reverse of `bind`: trained parameters as a checkpoint holds them.

  An embedding that was left out is zeros again.
  """
  size, vocab = s.draft_vocab, s.config.vocab
  row_V = jnp.arange(size, dtype=jnp.int32)
  id_V = row_V if params.id_V is None else params.id_V
  drafted_V = jnp.zeros(vocab, jnp.int32).at[id_V].set(1)
  embed_VD = params.embed_VD
  if s.own_embedding and embed_VD is None:
    embed_VD = jnp.zeros((vocab, s.config.width), params.fc_DE.dtype)
  return params.replace(
    embed_VD=embed_VD,
    d2t_V=id_V - row_V if s.offsets else None,
    t2d_V=drafted_V if s.mask else None,
    id_V=None,
  )


def target_ids(d2t_V, t2d_V, size: int, vocab: int) -> np.ndarray | None:
  """int32[size]: the target's id of each draft token; None: they are the same.

  `d2t` holds offsets: row j is token j + d2t[j]. Files that hold the ids
  themselves are known; one is taken for that, with a warning, only where `t2d`
  says the same, since either reading gives tokens.

  Raises:
    ValueError: maps that were never filled, are out of range, contradict each
      other, or fit both readings.
  """
  if d2t_V is None:
    return None  # `_check_fit` saw that both vocabularies are one
  d2t_V = np.asarray(d2t_V, np.int64)
  row_V = np.arange(size)
  id_V, kept = d2t_V + row_V, None
  if t2d_V is not None:
    kept = np.flatnonzero(np.asarray(t2d_V))
    _check_filled(len(kept) == vocab, 't2d is true for all tokens', size, vocab)
  _check_filled(not d2t_V.any(), 'd2t is all zeros', size, vocab)
  if kept is not None and not np.array_equal(kept, id_V):
    if not np.array_equal(kept, d2t_V):
      raise ValueError(
        f'd2t and t2d contradict each other: t2d names {len(kept)} tokens '
        f'({_some(kept)}), d2t {size}: {_some(id_V)} if read as offsets, '
        f'{_some(d2t_V)} if read as ids. Use a checkpoint whose maps agree.'
      )
    warnings.warn(
      'd2t holds ids and not offsets, as t2d shows; it is read so.',
      stacklevel=3,
    )
    id_V = d2t_V
  if id_V.min() < 0 or id_V.max() >= vocab or len(np.unique(id_V)) < size:
    raise ValueError(
      f'd2t read as offsets gives tokens from {id_V.min()} to {id_V.max()}, '
      f'{len(np.unique(id_V))} different of {size}; they must be different '
      f'and below {vocab}. If it holds ids, store t2d beside it.'
    )
  # Offsets of a sorted list repeat where tokens are neighbours; ids never do.
  ids = d2t_V.min() >= 0 and len(np.unique(d2t_V)) == size
  if kept is None and size > 1 and ids:
    raise ValueError(
      f'd2t can be read as offsets (tokens {_some(id_V)}) and as ids '
      f'({_some(d2t_V)}), and there is no t2d to tell; store t2d beside it.'
    )
  return None if np.array_equal(id_V, np.arange(vocab)) else id_V.astype('i4')


def _check_filled(blank: bool, what: str, size: int, vocab: int) -> None:
  if blank and size < vocab:
    raise ValueError(
      f'{what}, yet {size} of {vocab} tokens are drafted: the maps were never '
      'filled. Use a checkpoint of a finished training.'
    )


def _some(id_V: np.ndarray) -> str:
  return ', '.join(map(str, id_V[:4])) + (', ...' if len(id_V) > 4 else '')
