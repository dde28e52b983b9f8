"""A block drafter's pass over many blocks of many texts at once.

Letters: A blocks of a row, each behind its anchor; T rows of a block, or its
masks; S tokens of a row of the batch, which are keys here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.products import product
from specjax.drafters.dflash import DFlash, Weights
from specjax.models import layers as nn
from specjax.models.block import block_with
from specjax.models.rope import rotation
from specjax.training.batch import Batch, asked
from specjax.training.chunked import over_rows
from specjax.training.teacher import Teacher
from specjax.tree_ops import take_rows
from specjax.types import Array, struct

BLOCKS = 64  # whose attention scores stand in memory together, of every row


@struct
class Slots:
  """What the masks of a block should have said; slot k - 1 is k behind."""

  token_BAT: Array  # int32
  wanted_BAT: Array  # bool: in the row, of the anchor's text, asked for
  before_BAT: Array  # int32, place in the row of the token before the slot's


def draw_anchors(
  batch: Batch, key: Array, count: int, *, prompt_end: bool = False
) -> tuple[Array, Array]:
  """(int32[B, A], bool[B, A]): different places of each row, and which count.

  An anchor is an answer's token whose next one is the answer's too: what the
  first token of an answer and all that are committed later are in decoding.
  Uniform, without replacement, rising (Chen, Liang & Liu, arXiv:2602.06036). A
  row with fewer candidates has invalid blocks, which stand at its place 0.

  Args:
    batch: texts.
    key: of this draw.
    count: A; no more than there are tokens in a row are drawn.
    prompt_end: also the last token before an answer, where a loop would start
      whose target did not give the first token.
  """
  fit_BS = asked(batch)
  if not prompt_end:
    fit_BS &= batch.wanted_BT
  lot_BS = jnp.where(fit_BS, jax.random.uniform(key, fit_BS.shape), -1.0)
  best_BA, anchor_BA = lax.top_k(lot_BS, min(count, fit_BS.shape[1]))
  last = fit_BS.shape[1]
  anchor_BA = jnp.sort(jnp.where(best_BA >= 0, anchor_BA, last), axis=1)
  valid_BA = anchor_BA < last
  return jnp.where(valid_BA, anchor_BA, 0), valid_BA


def slots(batch: Batch, anchor_BA: Array, valid_BA: Array, block: int) -> Slots:
  """Labels of blocks; a slot that has none is token 0 and not wanted."""
  s = batch.token_BT.shape[1]
  place_BAT = anchor_BA[..., None] + jnp.arange(1, block)
  inside_BAT = place_BAT < s
  place_BAT = jnp.minimum(place_BAT, s - 1)
  text_BA = take_rows(batch.text_BT, anchor_BA)
  same_BAT = take_rows(batch.text_BT, place_BAT) == text_BA[..., None]
  asked_BAT = take_rows(batch.wanted_BT, place_BAT)
  wanted_BAT = valid_BA[..., None] & inside_BAT & same_BAT & asked_BAT
  token_BAT = take_rows(batch.token_BT, place_BAT)
  before_BAT = jnp.minimum(anchor_BA[..., None] + jnp.arange(block - 1), s - 1)
  return Slots(
    token_BAT=jnp.where(wanted_BAT, token_BAT, 0),
    wanted_BAT=wanted_BAT,
    before_BAT=before_BAT,
  )


def block_hidden(
  drafter: DFlash,
  params: Weights,
  target,
  batch: Batch,
  teacher: Teacher,
  anchor_BA: Array,
  valid_BA: Array,
) -> tuple[Array, Array]:
  """(raw [B, A, T, D], normed [B, A, T, D]): `DFlash.hidden` at each anchor.

  T = block - 1, the masks alone. The rows of a block see what stands before
  their anchor in its text, and their own block: what decoding computes there.
  Attention over both is one softmax. Keys and values of the context are made
  once per token, for all blocks.

  Args:
    drafter: `causal` decides what rows of a block see of one another.
    params: its parameters.
    target: the target's weights, whose embedding is read.
    batch: texts.
    teacher: its `taps_BTE` are the drafter's, of tokens as they stand.
    anchor_BA: int32, places in the row.
    valid_BA: bool; the others see no context, and mean nothing.
  """
  c, t = drafter.config, drafter.block
  b, a = anchor_BA.shape
  token_BA = take_rows(batch.token_BT, anchor_BA)
  token_BAT = jnp.full((b, a, t), drafter.mask_id, jnp.int32)
  token_BAT = token_BAT.at[..., 0].set(token_BA)
  x_BND = target.embed_VD[token_BAT.reshape(b, a * t)]  # N: rows of all blocks
  start_BA1 = take_rows(batch.position_BT, anchor_BA)[..., None]
  position_BN = (start_BA1 + jnp.arange(t)).reshape(b, a * t)
  turn = rotation(position_BN, c.rope, c.head_dim)
  fused_BSD = drafter.fuse(params, teacher.taps_BTE)
  context_turn = rotation(batch.position_BT, c.rope, c.head_dim)
  see_BAS = _sees(batch, anchor_BA, valid_BA)

  def layer_of(x_BND, layer):
    context = drafter.keys_values(layer, fused_BSD, context_turn)
    attend = lambda q, k, v: _attend(drafter, q, k, v, *context, see_BAS)
    h_BND = nn.rms_norm(x_BND, layer.attn_norm_D, c.eps)
    x_BND, _, _ = block_with(c, layer, h_BND, x_BND, turn, attend)
    return x_BND, None

  for stack in params.layers:
    if stack.attn_norm_D.shape[0] == 1:
      x_BND, _ = layer_of(x_BND, jax.tree.map(lambda x: x[0], stack))
    else:
      x_BND, _ = lax.scan(layer_of, x_BND, stack)
  raw_BATD = x_BND.reshape(b, a, t, -1)[:, :, 1:]
  return raw_BATD, nn.rms_norm(raw_BATD, params.norm_D, c.eps)


def _sees(batch: Batch, anchor_BA: Array, valid_BA: Array) -> Array:
  """bool[B, A, S]: tokens of the anchor's text that stand before it."""
  text_BA1 = take_rows(batch.text_BT, anchor_BA)[..., None]
  same_BAS = batch.text_BT[:, None] == text_BA1
  before_BAS = jnp.arange(batch.text_BT.shape[1]) < anchor_BA[..., None]
  return same_BAS & before_BAS & valid_BA[..., None]


def _attend(
  drafter, q_BNQH, own_k_BKNH, own_v_BKNH, k_BKSH, v_BKSH, see_BAS
) -> Array:
  """[B, A * T, Q, H]: one softmax over context and own block.

  The largest logit is taken out of both parts, so that their exponentials add
  up: what a block sees is never put together. Some blocks at a time.
  """
  t, h = drafter.block, drafter.config.head_dim
  b, k, n, _ = own_k_BKNH.shape
  scale = h**-0.5
  see_TT = jnp.ones((t, t), bool)
  see_TT = jnp.tril(see_TT) if drafter.causal else see_TT

  # U: rows of the own block, as keys.
  def some(q_ABTKGH, own_k_ABKUH, own_v_ABKUH, see_ABS):
    q_BKAGTH = q_ABTKGH.transpose(1, 3, 0, 4, 2, 5)
    own_k, own_v = (
      x.transpose(1, 2, 0, 3, 4) for x in (own_k_ABKUH, own_v_ABKUH)
    )
    far_BKAGTS = scale * product('bkagth,bksh->bkagts', q_BKAGTH, k_BKSH)
    see_BAS = see_ABS.swapaxes(0, 1)
    far_BKAGTS = jnp.where(
      see_BAS[:, None, :, None, None], far_BKAGTS, -jnp.inf
    )
    near_BKAGTU = scale * product('bkagth,bkauh->bkagtu', q_BKAGTH, own_k)
    near_BKAGTU = jnp.where(see_TT, near_BKAGTU, -jnp.inf)
    top = lambda x: lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    top_BKAGT1 = jnp.maximum(top(far_BKAGTS), top(near_BKAGTU))
    far_BKAGTS = jnp.exp(far_BKAGTS - top_BKAGT1)
    near_BKAGTU = jnp.exp(near_BKAGTU - top_BKAGT1)
    total_BKAGT1 = jnp.sum(far_BKAGTS, axis=-1, keepdims=True)
    total_BKAGT1 += jnp.sum(near_BKAGTU, axis=-1, keepdims=True)
    out = product(
      'bkagts,bksh->bkagth', far_BKAGTS.astype(q_BNQH.dtype), v_BKSH
    )
    out += product(
      'bkagtu,bkauh->bkagth', near_BKAGTU.astype(q_BNQH.dtype), own_v
    )
    out_BKAGTH = (out / total_BKAGT1).astype(q_BNQH.dtype)
    return out_BKAGTH.transpose(2, 0, 4, 1, 3, 5)

  own = lambda x_BKNH: jnp.moveaxis(x_BKNH.reshape(b, k, -1, t, h), 2, 0)
  out_ABTKGH = over_rows(
    some,
    q_BNQH.reshape(b, n // t, t, k, -1, h).swapaxes(0, 1),
    own(own_k_BKNH),
    own(own_v_BKNH),
    see_BAS.swapaxes(0, 1),
    chunk=BLOCKS,
  )
  return out_ABTKGH.swapaxes(0, 1).reshape(b, n, -1, h)
