"""What a caller may ask for, checked before any long work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.checks import whole
from specjax.sampling import row_keys
from specjax.types import Sampling

# Settings that change the law in a way that depends on the text so far.
REFUSED = (
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
  'no_repeat_ngram_size',
  'logit_bias',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """Per-row settings of one call, on the host; every list has a row's entry."""

  prompts: list[list[int]]
  new_tokens: list[int]
  temperature: list[float]
  top_k: list[int]
  top_p: list[float]
  min_p: list[float]
  seeds: list[int]
  stop_ids: tuple[int, ...]

  def __len__(self) -> int:
    return len(self.prompts)

  def part(self, first: int, count: int) -> Rows:
    """A slice of the rows."""
    cut = lambda x: x[first : first + count] if isinstance(x, list) else x
    fields = dataclasses.fields(self)
    return Rows(**{f.name: cut(getattr(self, f.name)) for f in fields})

  def filled(self, multiple: int) -> Rows:
    """With copies of the last row up to a multiple, each of one token."""
    more = -len(self) % multiple
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    wider = {k: x + x[-1:] * more for k, x in fields.items() if k != 'stop_ids'}
    wider['new_tokens'] = self.new_tokens + [1] * more
    return dataclasses.replace(self, **wider)

  def sampling(self) -> Sampling:
    """As arrays, with the two static facts."""
    greedy = all(t == 0 for t in self.temperature)
    cuts = any(
      k > 0 or p < 1 or m > 0
      for k, p, m in zip(self.top_k, self.top_p, self.min_p, strict=True)
    )
    return Sampling(
      temperature_B=jnp.asarray(self.temperature, jnp.float32),
      top_k_B=jnp.asarray(self.top_k, jnp.int32),
      top_p_B=jnp.asarray(self.top_p, jnp.float32),
      min_p_B=jnp.asarray(self.min_p, jnp.float32),
      all_greedy=greedy,
      filtering=cuts and not greedy,
    )

  def arrays(self, bucket: int, stops: int = 0) -> tuple[Any, ...]:
    """Tokens, lengths, keys, sampling, stops and caps, as `prefill` takes them.

    Prompts are padded to `bucket` tokens, stop ids to `stops` or more.
    """
    length_B = jnp.asarray(list(map(len, self.prompts)), jnp.int32)
    return (
      jnp.asarray(self.padded(bucket)),
      length_B,
      row_keys(self.seeds),
      self.sampling(),
      jnp.asarray(self.stops(stops)),
      length_B + jnp.asarray(self.new_tokens, jnp.int32),
    )

  def padded(self, bucket: int) -> np.ndarray:
    """int32[B, bucket]: prompts, zeros behind them."""
    token_BT = np.zeros((len(self), bucket), np.int32)
    for row, ids in zip(token_BT, self.prompts, strict=True):
      row[: len(ids)] = ids
    return token_BT

  def stops(self, least: int = 0) -> np.ndarray:
    """int32[B, I], -1 padded to a multiple of 4 so that few shapes exist."""
    width = -(-max(4, least, len(self.stop_ids)) // 4) * 4
    stop_BI = np.full((len(self), width), -1, np.int32)
    stop_BI[:, : len(self.stop_ids)] = self.stop_ids
    return stop_BI


def as_prompts(prompts: Any) -> list[Any]:
  """A list of prompts from one prompt or several.

  A prompt is a string, a list of ids, or a list of chat messages.
  """
  if isinstance(prompts, np.ndarray):
    prompts = prompts.tolist()
  if isinstance(prompts, str):
    return [prompts]
  if not isinstance(prompts, Sequence):
    raise ValueError(
      f'prompts are {str(prompts)[:40]!r}; give a string, a list of ids, a '
      'list of chat messages, or a list of these.'
    )
  if prompts and isinstance(prompts[0], (int, float, np.number, dict)):
    return [prompts]
  prompts = [p.tolist() if isinstance(p, np.ndarray) else p for p in prompts]
  if not prompts:
    raise ValueError('no prompts were given; pass at least one.')
  return prompts


def make_rows(
  prompts: list[list[int]],
  *,
  vocab: int,
  max_length: int,
  max_new_tokens: Any,
  n: int = 1,
  temperature: Any = 0.0,
  top_k: Any = 0,
  top_p: Any = 1.0,
  min_p: Any = 0.0,
  seed: Any = 0,
  stop_ids: Sequence[int] = (),
) -> Rows:
  """Expands prompts by `n`, prompt-major, and checks every setting.

  Raises:
    ValueError: names the setting, what was given and what is allowed.
  """
  if not whole(n) or n < 1:
    raise ValueError(f'n is {n!r}; ask for at least 1 sample per prompt.')
  for i, ids in enumerate(prompts):
    if not ids:
      raise ValueError(f'prompt {i} is empty; give it at least one token.')
    wrong = [t for t in ids if not 0 <= t < vocab]
    if wrong:
      raise ValueError(
        f'prompt {i} holds id {wrong[0]}; ids are 0 to {vocab - 1}.'
      )
  for t in stop_ids:
    if not whole(t) or not 0 <= t < vocab:
      raise ValueError(f'stop id {t!r} is out of range 0 to {vocab - 1}.')
  prompts = [list(ids) for ids in prompts for _ in range(n)]
  count = len(prompts)
  row = lambda *args: _per_row(*args, rows=count)
  new_tokens = row(
    'max_new_tokens',
    max_new_tokens,
    lambda x: whole(x) and x >= 1,
    'whole, >= 1',
  )
  for i, (ids, new) in enumerate(zip(prompts, new_tokens, strict=True)):
    if len(ids) + new > max_length:
      raise ValueError(
        f'row {i}: a prompt of {len(ids)} tokens and {new} new ones exceed '
        f'the context of {max_length}; shorten one of them.'
      )
  seeds = [seed + i for i in range(count)] if whole(seed) else seed
  return Rows(
    prompts=prompts,
    new_tokens=new_tokens,
    temperature=row(
      'temperature', temperature, lambda x: 0 <= x < math.inf, '>= 0'
    ),
    top_k=row(
      'top_k', top_k, lambda x: whole(x) and x >= 0, 'whole, >= 0 (0: off)'
    ),
    top_p=row('top_p', top_p, lambda x: 0 < x <= 1, 'in (0, 1]'),
    min_p=row('min_p', min_p, lambda x: 0 <= x < 1, 'in [0, 1)'),
    seeds=row(
      'seed',
      seeds,
      lambda x: whole(x) and 0 <= x < 2**32,
      'whole, in [0, 2^32)',
    ),
    stop_ids=tuple(int(t) for t in dict.fromkeys(stop_ids)),
  )


def _per_row(
  name: str, value: Any, good: Callable[[Any], bool], allowed: str, *, rows: int
) -> list[Any]:
  values = list(value) if isinstance(value, (list, tuple, np.ndarray)) else None
  if values is None:
    values = [value] * rows
  if len(values) != rows:
    raise ValueError(
      f'{name} has {len(values)} entries for {rows} rows (prompts x n); give '
      'one value, or one for each row.'
    )
  for i, x in enumerate(values):
    number = isinstance(x, (int, float, np.number)) and not isinstance(x, bool)
    if not number or not good(x):
      raise ValueError(f'{name} of row {i} is {x!r}; it must be {allowed}.')
  return [x.item() if isinstance(x, np.number) else x for x in values]
