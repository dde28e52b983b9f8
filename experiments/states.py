"""Decode states for measurements: after a prompt, and what came of one."""

from __future__ import annotations

from typing import Any

from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.inputs import Rows
from specjax.method import Method
from specjax.types import DecodeState, Params


def after_prompt(
  method: Method, params: Params, rows: Rows, *, pad_to: int = 0
) -> DecodeState:
  """The prompts read; room for prompts of `pad_to` tokens, as in `generate`."""
  longest = max(pad_to, *map(len, rows.prompts))
  return prefill(
    method,
    params,
    *rows.arrays(bucket_for(longest)),
    capacity=capacity_for(method, longest, max(rows.new_tokens)),
  )


def answer(state: DecodeState, prompt: int) -> dict[str, Any]:
  """What row 0 was given behind a prompt of so many tokens."""
  length, rounds = int(state.context.length_B[0]), int(state.rounds_B[0])
  return {
    'prompt_tokens': prompt,
    'tokens': length - prompt - 1,  # of rounds: the prefill's is left out
    'rounds': rounds,
    'walks': state.walk_BR[0, :rounds].tolist(),
    'ids': state.context.tokens_BT[0, prompt:length].tolist(),
  }
