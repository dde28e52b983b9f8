"""TAPS-Lite: how likely the target takes a token behind its parent."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax.models import layers as nn
from specjax.models.names import Tensor
from specjax.types import Array, struct

PROJECTED = 32  # what remains of a token's embedding, or of a hidden state
DEPTHS, DEPTH_WIDTH = 32, 8  # the table of depths; deeper ones read its end
SCALARS = 7
INNER = 64
NORM_EPS = 1e-5

# Letters of this file: J the projected width, Z the depth table's, I and O a
# layer's in and out, T depths of the pool (row 0 is depth 1), W its nodes.


@struct
class Head:
  """A normed two-layer perceptron with one output."""

  norm_I: Array
  norm_bias_I: Array
  up_OI: Array
  up_bias_O: Array
  down_1O: Array
  down_bias_1: Array


@struct
class Scorer:
  """The parameters, as a checkpoint holds them."""

  token_JD: Array
  hidden_JD: Array
  depth_RZ: Array  # R: DEPTHS rows
  edge: Head
  other: Head


@struct
class Bound:
  """What the loop reads: the token projection became a table, all float32."""

  token_VJ: Array
  hidden_JD: Array
  depth_RZ: Array
  edge: Head
  other: Head


@struct
class Lattice:
  """The drafter's laws of all depths; features are plain, never coupled."""

  token_BTC: Array  # int32
  score_BTC: Array  # float32, -inf for "not a candidate"
  plain_BTC: Array  # float32, finite
  hidden_BTD: Array
  entropy_BT: Array  # float32


@struct
class Nodes:
  """A pool's nodes as the scorer sees them; dead ones are finite too."""

  token_BTW: Array  # int32
  parent_BTW: Array  # int32, index one depth up; 0 at depth 1
  step_BTW: Array  # plain log-probability
  total_BTW: Array  # its sum along the path


def abstract(width: int) -> Scorer:
  """Shapes for a target, and so for a drafter, of that width.

  176 894 parameters for width 2560, which enters by two matrices alone.
  """
  leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  head = lambda size: Head(
    norm_I=leaf(size),
    norm_bias_I=leaf(size),
    up_OI=leaf(INNER, size),
    up_bias_O=leaf(INNER),
    down_1O=leaf(1, INNER),
    down_bias_1=leaf(1),
  )
  shared = DEPTH_WIDTH + SCALARS + PROJECTED
  return Scorer(
    token_JD=leaf(PROJECTED, width),
    hidden_JD=leaf(PROJECTED, width),
    depth_RZ=leaf(DEPTHS, DEPTH_WIDTH),
    edge=head(2 * PROJECTED + shared),
    other=head(PROJECTED + shared),
  )


def init(key: Array, width: int) -> Scorer:
  """Random parameters: matrices of unit gain, norms that do nothing."""

  def value(i: int, name: str, like) -> Array:
    if 'norm_I' in name:
      return jnp.ones(like.shape)
    if 'bias' in name:
      return jnp.zeros(like.shape)
    draw = jax.random.normal(jax.random.fold_in(key, i), like.shape)
    return draw / jnp.sqrt(1.0 if 'depth' in name else like.shape[-1])

  leaves, tree = jax.tree_util.tree_flatten_with_path(abstract(width))
  names = [jax.tree_util.keystr(path) for path, _ in leaves]
  return jax.tree_util.tree_unflatten(
    tree,
    [
      value(i, name, leaf)
      for i, (name, (_, leaf)) in enumerate(zip(names, leaves, strict=True))
    ],
  )


def tensors() -> list[Tensor]:
  """The names of the authors' TAPS-Lite (github.com/wzyyy-lab/TAPS-SP)."""
  names = {
    'token_JD': 'token_proj.weight',
    'hidden_JD': 'hidden_proj.weight',
    'depth_RZ': 'depth_embed.weight',
  }
  for head in ('edge', 'other'):
    names |= {
      f'{head}.norm_I': f'{head}_norm.weight',
      f'{head}.norm_bias_I': f'{head}_norm.bias',
      f'{head}.up_OI': f'{head}_mlp.0.weight',
      f'{head}.up_bias_O': f'{head}_mlp.0.bias',
      f'{head}.down_1O': f'{head}_mlp.2.weight',
      f'{head}.down_bias_1': f'{head}_mlp.2.bias',
    }
  return [Tensor(ours, (theirs,)) for ours, theirs in names.items()]


def bind(scorer: Scorer, embed_VD: Array) -> Bound:
  """Projects the target's whole embedding once.

  Raises:
    ValueError: a scorer for a target of another width.
  """
  width = scorer.token_JD.shape[-1], scorer.hidden_JD.shape[-1]
  wanted = embed_VD.shape[-1]
  if width != (wanted, wanted):
    raise ValueError(
      f'the scorer reads embeddings of width {width[0]} and hidden states of '
      f'width {width[1]}, the target has {wanted}; use the scorer that was '
      'trained for this target.'
    )
  scorer = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), scorer)
  project = jax.jit(lambda e, w: nn.linear(e.astype(jnp.float32), w))
  return Bound(
    token_VJ=project(embed_VD, scorer.token_JD),
    hidden_JD=scorer.hidden_JD,
    depth_RZ=scorer.depth_RZ,
    edge=scorer.edge,
    other=scorer.other,
  )


def logits(
  w: Bound, lattice: Lattice, nodes: Nodes, root_B: Array
) -> tuple[Array, Array]:
  """(edge_BTW, other_BTW), float32.

  `edge` is of a node behind its parent. `other` is of no child in the pool: its
  entry [t, w] belongs to the w-th node of depth t, the first of depth 0 being
  the root, and stands against the edges of row t. As released, it reads its own
  depth's scalars but the hidden state of its children's depth.
  """
  b, t, n = nodes.token_BTW.shape
  # Node w of depth t - 1, at [t, w]: the parents of row t.
  root_B1W = jnp.broadcast_to(root_B[:, None, None], (b, 1, n))
  above = lambda x_BTW: jnp.concatenate(
    [jnp.zeros_like(x_BTW[:, :1]), x_BTW[:, :-1]], axis=1
  )
  up_token_BTW = jnp.concatenate([root_B1W, nodes.token_BTW[:, :-1]], axis=1)
  from_BTW = jnp.take_along_axis(up_token_BTW, nodes.parent_BTW, axis=2)
  wide = lambda x_BTJ: jnp.broadcast_to(
    x_BTJ[:, :, None], (b, t, n, x_BTJ.shape[-1])
  )
  hidden_BTJ = nn.linear(lattice.hidden_BTD.astype(jnp.float32), w.hidden_JD)
  depth = jnp.arange(1, t + 1)
  at = lambda d_T: jnp.broadcast_to(
    w.depth_RZ[jnp.minimum(d_T, DEPTHS - 1)], (b, t, DEPTH_WIDTH)
  )
  law_BTS = _law_scalars(lattice)
  edge_BTWI = jnp.concatenate(
    [
      w.token_VJ[nodes.token_BTW],
      w.token_VJ[from_BTW],
      wide(at(depth)),
      _scalars(nodes.step_BTW, law_BTS, depth, nodes.total_BTW),
      wide(hidden_BTJ),
    ],
    axis=-1,
  )
  total_BTW = above(nodes.total_BTW)
  other_BTWI = jnp.concatenate(
    [
      w.token_VJ[up_token_BTW],
      wide(at(depth - 1)),
      _scalars(0 * total_BTW, above(law_BTS), depth - 1, total_BTW),
      wide(hidden_BTJ),
    ],
    axis=-1,
  )
  return _head(w.edge, edge_BTWI), _head(w.other, other_BTWI)


def _law_scalars(lattice: Lattice) -> Array:
  """float32[B, T, 3]: entropy, lead of the best token, mass of candidates.

  The best are those of the plain law, which coupled candidates are not sorted
  by.
  """
  best_BTC = jnp.sort(lattice.plain_BTC, axis=-1, descending=True)
  second = min(1, best_BTC.shape[-1] - 1)  # a lone candidate has no lead
  lead_BT = best_BTC[..., 0] - best_BTC[..., second]
  mass_BT = jnp.sum(jnp.exp(lattice.plain_BTC), axis=-1)
  return jnp.stack(
    [lattice.entropy_BT, lead_BT, jnp.minimum(mass_BT, 1)], axis=-1
  )


def _scalars(
  step_BTW: Array, law_BTS: Array, depth_T: Array, total_BTW: Array
) -> Array:
  b, t, n = step_BTW.shape
  depth_T1 = depth_T[:, None].astype(jnp.float32)
  share_BTW1 = jnp.broadcast_to(depth_T1[:, None] / t, (b, t, n, 1))
  law_BTWS = jnp.broadcast_to(law_BTS[:, :, None], (b, t, n, 3))
  mean_BTW = total_BTW / jnp.maximum(depth_T1, 1)
  return jnp.concatenate(
    [
      step_BTW[..., None],
      law_BTWS,
      share_BTW1,
      total_BTW[..., None],
      mean_BTW[..., None],
    ],
    axis=-1,
  )


def _head(w: Head, x: Array) -> Array:
  """[..., I] to [...]: a layer norm with bias, silu, one number."""
  x = x - jnp.mean(x, axis=-1, keepdims=True)
  scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + NORM_EPS)
  x = x * scale * w.norm_I + w.norm_bias_I
  x = jax.nn.silu(nn.linear(x, w.up_OI) + w.up_bias_O)
  return (nn.linear(x, w.down_1O) + w.down_bias_1)[..., 0]
