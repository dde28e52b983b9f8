"""A small set of rare tokens that follows the text; pure functions on arrays.

Letters beside those of `specjax.types`: I slots of the buffer, C candidates
for it (and neighbours per token in an `Index`), A newcomers of one round. The
functions are written for one sequence and mapped over a batch.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels.top_k import top_k
from specjax.checks import check_whole, number
from specjax.types import Accepted, Array, struct

ABSENT, STATIC = -1, -2  # in `slot_BV`: may enter; is in the fixed list
SOURCES = 'abcde'


@struct
class Index:
  """Rare tokens that each token brings to mind, best first."""

  id_VC: Array  # int32, -1 padded
  weight_VC: Array  # float16, 0 to 1


@struct
class Buffer:
  """Rare tokens that may be drafted now; one set per sequence.

  A slot with id -1 is empty and its score -inf. `slot_BV` finds a token's slot,
  or says why it has none.
  """

  id_BI: Array  # int32
  score_BI: Array  # float32
  last_BI: Array  # int32, length of the text when the score last rose
  row_BID: Array  # the head's rows of these ids
  slot_BV: Array  # int32
  seen_B: Array  # int32, tokens of the text that were counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """What makes a token likely to come, and how fast that is forgotten.

  Sources, each with its weight: a, the token was just emitted; b, the target
  chose it where it could not be drafted; c, it was among the target's best
  `top_ids` along the path (times its probability); d and e, its neighbours by
  embedding and by co-occurrence were emitted (times the index's weight).
  """

  sources: str = 'abc'
  use: float = 4.0
  miss: float = 2.0
  top: float = 2.0
  semantic: float = 0.5
  statistical: float = 0.5
  top_ids: int = 8
  decay: float = 0.98  # per token of text
  margin: float = 1.1  # a newcomer must outweigh an old one so many times
  swaps: int = 64  # newcomers per round at most

  def __post_init__(self):
    known = isinstance(self.sources, str) and set(self.sources) <= set(SOURCES)
    if not known:
      raise ValueError(f'sources are {self.sources!r}; choose of {SOURCES!r}.')
    for name in ('use', 'miss', 'top', 'semantic', 'statistical'):
      weight = getattr(self, name)
      if not number(weight) or weight < 0:
        raise ValueError(f'{name} is {weight!r}; a weight is 0 or more.')
    numbers = number(self.decay) and number(self.margin)
    if not numbers or not 0 < self.decay <= 1 <= self.margin:
      raise ValueError(
        f'decay is {self.decay!r} and margin {self.margin!r}; decay is in '
        '(0, 1] and margin at least 1.'
      )
    check_whole(1, swaps=self.swaps, top_ids=self.top_ids)


def empty(rows_VD: Array, static_I: Array, batch: int, size: int) -> Buffer:
  """No token is in; those of `static_I` never will be."""
  vocab, width = rows_VD.shape
  slot_BV = jnp.full((batch, vocab), ABSENT, jnp.int32)
  return Buffer(
    id_BI=jnp.full((batch, size), -1, jnp.int32),
    score_BI=jnp.full((batch, size), -jnp.inf),
    last_BI=jnp.zeros((batch, size), jnp.int32),
    row_BID=jnp.zeros((batch, size, width), rows_VD.dtype),
    slot_BV=slot_BV.at[:, static_I].set(STATIC),
    seen_B=jnp.zeros((batch,), jnp.int32),
  )


def read(
  buffer: Buffer,
  rule: Rule,
  rows_VD: Array,
  indices: tuple[Index | None, Index | None],
  accepted: Accepted,
) -> Buffer:
  """After a chunk of the prompt: the best of all rare tokens, chosen anew.

  Scores of the whole vocabulary exist for a moment; those of tokens that do not
  enter are forgotten.
  """
  one = lambda buffer, *args: _read(buffer, rule, rows_VD, indices, *args)
  return jax.vmap(one)(
    buffer, accepted.token_BP, accepted.start_B, accepted.length_B
  )


def update(
  buffer: Buffer,
  rule: Rule,
  rows_VD: Array,
  indices: tuple[Index | None, Index | None],
  accepted: Accepted,
) -> tuple[Buffer, Array]:
  """After a round: the strongest newcomers take the weakest slots.

  At most `rule.swaps` rows are gathered. Equal scores: the slot that was of use
  earlier goes first, then the lower id; of newcomers the lower id enters.

  Returns:
    The buffer and int32[B], slots that changed hands.
  """
  text_BT, _ = round_text(accepted)
  top_id, top_weight = _target_top(rule, accepted)
  one = lambda buffer, *args: _update(buffer, rule, rows_VD, indices, *args)
  return jax.vmap(one)(
    buffer,
    text_BT,
    accepted.start_B,
    accepted.length_B,
    accepted.bonus_B,
    top_id,
    top_weight,
  )


def round_text(accepted: Accepted) -> tuple[Array, Array]:
  """The root, the path below it and the bonus; int32[B, P + 1], depths."""
  token_BT = jnp.pad(accepted.token_BP, ((0, 0), (0, 1)))
  depth_T = jnp.arange(token_BT.shape[1])
  at_BT = depth_T == accepted.length_B[:, None]
  return jnp.where(at_BT, accepted.bonus_B[:, None], token_BT), depth_T


def _target_top(rule: Rule, accepted: Accepted) -> tuple[Array, Array]:
  """The target's best tokens along the path, and what they weigh."""
  b, p, v = accepted.logits_BPV.shape
  if 'c' not in rule.sources:
    return jnp.zeros((b, 0), jnp.int32), jnp.zeros((b, 0))
  best_BPC, id_BPC = top_k(accepted.logits_BPV, min(rule.top_ids, v))
  total_BP1 = jax.nn.logsumexp(accepted.logits_BPV, axis=-1, keepdims=True)
  visited_BP = jnp.arange(p) < accepted.length_B[:, None]
  share_BPC = rule.top * jnp.exp(best_BPC - total_BP1)
  weight_BPC = jnp.where(visited_BP[..., None], share_BPC, 0)
  return id_BPC.reshape(b, -1).astype(jnp.int32), weight_BPC.reshape(b, -1)


def _evidence(rule, indices, token_T, weight_T) -> tuple[Array, Array]:
  """Ids and weights from the text itself: sources a, d and e."""
  ids, weights = [], []
  if 'a' in rule.sources:
    ids.append(token_T)
    weights.append(rule.use * weight_T)
  scales = (('d', rule.semantic), ('e', rule.statistical))
  for (source, scale), index in zip(scales, indices, strict=True):
    if source in rule.sources:
      weight_TC = index.weight_VC[token_T].astype(jnp.float32)
      ids.append(index.id_VC[token_T].reshape(-1))
      weights.append((scale * weight_T[:, None] * weight_TC).reshape(-1))
  if not ids:
    return jnp.zeros((0,), jnp.int32), jnp.zeros((0,))
  return jnp.concatenate(ids), jnp.concatenate(weights)


def _merge(id_C: Array, weight_C: Array, vocab: int) -> tuple[Array, Array]:
  """Each id once, ascending, with its sum; `vocab` where nothing is left."""
  n = id_C.shape[0]
  id_C = jnp.where((weight_C > 0) & (id_C >= 0), id_C, vocab)
  order_C = jnp.argsort(id_C, stable=True)
  id_C, weight_C = id_C[order_C], weight_C[order_C]
  first_C = jnp.concatenate([jnp.ones(1, bool), id_C[1:] != id_C[:-1]])
  group_C = jnp.cumsum(first_C) - 1
  sum_C = jnp.zeros(n).at[group_C].add(weight_C)
  once_C = jnp.full(n, vocab, jnp.int32).at[group_C].set(id_C)
  return once_C, jnp.where(once_C < vocab, sum_C, 0)


def _update(
  buffer: Buffer,
  rule,
  rows_VD,
  indices,
  token_T,
  start,
  length,
  bonus,
  top_id_C,
  top_weight_C,
) -> tuple[Buffer, Array]:
  vocab, size = rows_VD.shape[0], buffer.id_BI.shape[0]
  depth_T = jnp.arange(token_T.shape[0])
  # The prefill's token comes as the first root and was in no chunk.
  new_T = (depth_T <= length) & (start + depth_T >= buffer.seen_B)
  missed = 'b' in rule.sources and rule.miss * (buffer.slot_BV[bonus] == ABSENT)
  id_C, weight_C = _evidence(rule, indices, token_T, new_T.astype(jnp.float32))
  id_C, weight_C = _merge(
    jnp.concatenate([id_C, top_id_C, bonus[None]]),
    jnp.concatenate([weight_C, top_weight_C, jnp.full(1, missed, jnp.float32)]),
    vocab,
  )
  slot_C = jnp.where(id_C < vocab, buffer.slot_BV[id_C % vocab], STATIC)
  inside_C = jnp.where(slot_C >= 0, slot_C, size)
  now = start + length + 1
  score_I = buffer.score_BI * rule.decay ** jnp.sum(new_T)
  score_I = score_I.at[inside_C].add(weight_C, mode='drop')
  last_I = buffer.last_BI.at[inside_C].set(now, mode='drop')

  most = min(rule.swaps, size, id_C.shape[0])
  fresh_A, pick_A = top_k(jnp.where(slot_C == ABSENT, weight_C, 0), most)
  weak_A = jnp.lexsort((buffer.id_BI, last_I, score_I))[:most]
  floor_A = jnp.maximum(score_I[weak_A], 0)  # an empty slot asks for nothing
  swap_A = (fresh_A > 0) & (fresh_A > rule.margin * floor_A)
  old_A, new_A = buffer.id_BI[weak_A], id_C[pick_A]
  put = lambda x_I, new_A: x_I.at[weak_A].set(
    jnp.where(swap_A, new_A, x_I[weak_A])
  )
  slot_V = buffer.slot_BV
  slot_V = slot_V.at[jnp.where(swap_A & (old_A >= 0), old_A, vocab)].set(
    ABSENT, mode='drop'
  )
  slot_V = slot_V.at[jnp.where(swap_A, new_A, vocab)].set(weak_A, mode='drop')
  row_AD = jnp.where(
    swap_A[:, None], rows_VD[new_A % vocab], buffer.row_BID[weak_A]
  )
  made = Buffer(
    id_BI=put(buffer.id_BI, new_A),
    score_BI=put(score_I, fresh_A),
    last_BI=put(last_I, now),
    row_BID=buffer.row_BID.at[weak_A].set(row_AD),
    slot_BV=slot_V,
    seen_B=now,
  )
  return made, jnp.sum(swap_A, dtype=jnp.int32)


def _read(
  buffer: Buffer, rule, rows_VD, indices, token_T, start, length
) -> Buffer:
  vocab, size = rows_VD.shape[0], buffer.id_BI.shape[0]
  age_T = length - 1 - jnp.arange(token_T.shape[0])
  weight_T = jnp.where(age_T >= 0, rule.decay ** jnp.maximum(age_T, 0), 0)
  id_C, weight_C = _evidence(rule, indices, token_T, weight_T)
  known = lambda id_C: jnp.where(id_C >= 0, id_C, vocab)  # else dropped
  add = lambda x_V, id_C, y_C: x_V.at[known(id_C)].add(y_C, mode='drop')
  fresh_V = add(jnp.zeros(vocab), id_C, weight_C)
  old_I = jnp.where(buffer.id_BI >= 0, buffer.score_BI, 0)
  score_V = add(fresh_V, buffer.id_BI, old_I * rule.decay**length)
  score_V = jnp.where(buffer.slot_BV == STATIC, 0, score_V)
  score_I, id_I = top_k(score_V, size)
  used_I = score_I > 0
  id_I = jnp.where(used_I, id_I, -1).astype(jnp.int32)
  last_V = add(jnp.zeros(vocab, jnp.int32), buffer.id_BI, buffer.last_BI)
  last_V = jnp.where(fresh_V > 0, start + length, last_V)
  slot_V = jnp.where(buffer.slot_BV == STATIC, STATIC, ABSENT)
  return Buffer(
    id_BI=id_I,
    score_BI=jnp.where(used_I, score_I, -jnp.inf),
    last_BI=jnp.where(used_I, last_V[id_I], 0),
    row_BID=rows_VD[jnp.maximum(id_I, 0)],
    slot_BV=slot_V.at[known(id_I)].set(jnp.arange(size), mode='drop'),
    seen_B=jnp.where(length > 0, start + length, buffer.seen_B),
  )
