"""Texts by the drafter that is being trained, and what became of its drafts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checks import check_whole
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.drafters.dflash import DFlash
from specjax.drafters.trimmed_vocab import Trimmed, TrimmedVocab
from specjax.inputs import make_rows
from specjax.method import Method
from specjax.training.batch import Fixed
from specjax.training.replay import Replay, Rollout, Seen, plan
from specjax.types import Array, Params, TokenTree, Verdict
from specjax.weights.leaves import cast

ROUNDS = (16, 32, 64, 128, 256, 512, 1024)  # few sizes, few programs


def seen(tree: TokenTree, logits_BNV: Array, verdict: Verdict) -> Seen:
  """An observer for `decode`.

  Row k - 1 of the logits has read the anchor and the drafts before slot k,
  wrong ones included: what it gives draft k is conditioned on them.
  """
  draft_BK, logits_BKV = tree.token_BN[:, 1:], logits_BNV[:, :-1]
  at_BK = jnp.take_along_axis(logits_BKV, draft_BK[..., None], axis=-1)[..., 0]
  return Seen(
    draft_BK=draft_BK,
    logp_BK=at_BK - jax.nn.logsumexp(logits_BKV, axis=-1),
    kept_B=verdict.length_B - 1,
  )


def roll(
  method: Method,
  params: Params,
  prompts: Sequence[Sequence[int]],
  *,
  new_tokens: int,
  stop_ids: Sequence[int] = (),
  pad_to: int = 0,
) -> Rollout:
  """Answers to prompts by greedy speculative decoding, rounds recorded.

  All on the device, in the programs of `prefill` and `decode`: one per number
  of prompts and bucket of their length, whatever the parameters.

  Args:
    method: `methods.dflash`, its drafter as built or in `TrimmedVocab`.
    params: target and drafter.
    prompts: ids.
    new_tokens: at most, of every answer; 2 or more.
    stop_ids: end an answer and stay in it.
    pad_to: room for prompts of so many tokens, so that fewer buckets occur.

  Raises:
    ValueError: another method, or prompts that are empty, hold what is no id,
      or do not fit the target with their answers.
  """
  config = params.target.config
  _check(method, prompts, new_tokens, config)
  longest = max(pad_to, *map(len, prompts))
  rows = make_rows(
    list(map(list, prompts)),
    vocab=config.vocab,
    max_length=config.max_length,
    max_new_tokens=new_tokens,
    stop_ids=stop_ids,
  )
  arrays = rows.arrays(bucket_for(longest))
  room = capacity_for(method, longest, new_tokens)
  state = prefill(method, params, *arrays, capacity=room)
  # The prompt gave the first token; a round gives one or more.
  state, records = decode(
    method, params, state, max_rounds=new_tokens - 1, observe=seen
  )
  return Rollout(
    token_BT=state.context.tokens_BT,
    prompt_B=arrays[1],
    length_B=state.context.length_B,
    rounds_B=state.rounds_B,
    seen=records.values,
  )


def opd_batches(
  method: Method,
  fixed: Fixed,
  drafter: Any,
  prompts: Sequence[Sequence[int]],
  *,
  rows: int,
  micro: int,
  new_tokens: int,
  stop_ids: Sequence[int] = (),
  pad_to: int = 0,
  seed: int = 0,
) -> tuple[Replay, dict[str, float]]:
  """Batches for one `step.update`, written by the drafter it will change.

  Call it before every step: what a step learns from is then its own
  parameters' (Lei, Li et al., arXiv:2605.29343, have no staleness either).
  Rows are cut to buckets of the longest text and of the most rounds.

  Args:
    method: `methods.dflash`.
    fixed: target, and what the drafter may propose.
    drafter: its parameters, of any dtype; it drafts in the target's.
    prompts: ids, of the whole step.
    rows: prompts that are decoded together.
    micro: rows of a micro-batch.
    new_tokens, stop_ids, pad_to: see `roll`.
    seed: of the rounds that are left out where a text has too many.

  Returns:
    Micro-batches, and figures: `mean_accepted` (tokens of rounds / rounds),
    `tokens`, `rounds`, and `dropped` rounds.

  Raises:
    ValueError: prompts that cannot be split so, or see `roll`.
  """
  check_whole(1, rows=rows, micro=micro)
  if not prompts or len(prompts) % rows or len(prompts) % micro:
    raise ValueError(
      f'{len(prompts)} prompts are to be decoded {rows} at a time and learned '
      f'from {micro} at a time; give a number of them that both divide.'
    )
  _check(method, prompts, new_tokens, fixed.target.config)
  longest = max(pad_to, *map(len, prompts))
  method, params = _drafting(method, fixed, drafter)
  lots = [
    roll(
      method,
      params,
      prompts[i : i + rows],
      new_tokens=new_tokens,
      stop_ids=stop_ids,
      pad_to=longest,
    )
    for i in range(0, len(prompts), rows)
  ]
  length_N, prompt_N, rounds_N = (
    np.concatenate(jax.device_get([getattr(x, name) for x in lots]))
    for name in ('length_B', 'prompt_B', 'rounds_B')
  )
  size = next((n for n in ROUNDS if n >= rounds_N.max()), ROUNDS[-1])
  keys = jax.random.split(jax.random.key(seed), len(lots))
  parts = [
    plan(lot, key, tokens=bucket_for(int(length_N.max())), rounds=size)
    for lot, key in zip(lots, keys, strict=True)
  ]
  split = lambda *xs: jnp.concatenate(xs).reshape(-1, micro, *xs[0].shape[1:])
  given, rounds = int((length_N - prompt_N - 1).sum()), int(rounds_N.sum())
  return jax.tree.map(split, *parts), {
    'mean_accepted': given / max(rounds, 1),
    'tokens': given,
    'rounds': rounds,
    'dropped': int(np.maximum(rounds_N - size, 0).sum()),
  }


def _drafting(
  method: Method, fixed: Fixed, drafter: Any
) -> tuple[Method, Params]:
  """The loop's method and parameters, with the vocabulary that is learned."""
  target = fixed.target
  drafter = cast(drafter, target.dtype)
  if fixed.id_V is None:
    return method, Params(target=target, drafter=drafter)
  trimmed = Trimmed(
    inner=drafter, rows_VD=target.head[fixed.id_V], id_V=fixed.id_V
  )
  wrapped = TrimmedVocab(inner=method.drafter)
  return (
    dataclasses.replace(method, drafter=wrapped),
    Params(target=target, drafter=trimmed),
  )


def _check(method: Method, prompts, new_tokens: int, config) -> None:
  drafter = method.drafter
  if isinstance(drafter, TrimmedVocab):
    drafter = drafter.inner
  chain = method.name == 'dflash' and isinstance(drafter, DFlash)
  if not chain or method.tree.ask.depth < 1:
    raise ValueError(
      f'method {method.name!r} drafts {method.tree.ask.depth} deep; rounds are '
      "replayed of 'dflash' alone, a chain of 2 nodes or more."
    )
  check_whole(2, new_tokens=new_tokens)
  for i, ids in enumerate(prompts):
    if not len(ids) or not 0 <= min(ids) <= max(ids) < config.vocab:
      raise ValueError(
        f'prompt {i} is {str(list(ids))[:40]}; give at least one id, and ids '
        f'from 0 to {config.vocab - 1}.'
      )
    if len(ids) + new_tokens > config.max_length:
      raise ValueError(
        f'prompt {i} has {len(ids)} tokens, and {new_tokens} more exceed the '
        f'context of {config.max_length}; shorten one of them.'
      )
