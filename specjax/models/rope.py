"""Rotary position embedding and its four scalings.

RoPE: Su et al., arXiv:2104.09864 (halves rotated, not pairs). YaRN: Peng et
al., arXiv:2309.00071. The llama3 rule: Grattafiori et al., arXiv:2407.21783.
A scaling that is dropped changes no greedy text of a short prompt, only its
quality: so each kind is compared with recorded tensors, and an unknown kind is
an error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checks import number

Array = jax.Array
KINDS = ('default', 'linear', 'llama3', 'yarn')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
  """How positions turn into angles."""

  theta: float = 10000.0
  kind: str = 'default'
  factor: float = 1.0
  original_length: int = 0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  attention_factor: float = 1.0  # multiplies cos and sin (yarn)
  truncate: bool = True

  def frequencies(self, head_dim: int) -> np.ndarray:
    """float32[H / 2]: radians per position."""
    exponent = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    plain = self.theta**-exponent
    if self.kind == 'linear':
      plain = plain / self.factor
    elif self.kind == 'llama3':
      plain = self._llama3(plain)
    elif self.kind == 'yarn':
      plain = self._yarn(plain, head_dim)
    return plain.astype(np.float32)

  def _llama3(self, plain: np.ndarray) -> np.ndarray:
    turns = self.original_length * plain / (2 * math.pi)
    low, high = self.low_freq_factor, self.high_freq_factor
    share = np.clip((turns - low) / (high - low), 0, 1)  # 1: left as it is
    return share * plain + (1 - share) * plain / self.factor

  def _yarn(self, plain: np.ndarray, head_dim: int) -> np.ndarray:
    def dim_of(turns: float) -> float:  # the pair that makes so many turns
      length = self.original_length / (turns * 2 * math.pi)
      return head_dim * math.log(length) / (2 * math.log(self.theta))

    low, high = dim_of(self.beta_fast), dim_of(self.beta_slow)
    if self.truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
      high += 0.001
    pair = np.arange(head_dim // 2)
    scaled = np.clip((pair - low) / (high - low), 0, 1)
    return (1 - scaled) * plain + scaled * plain / self.factor

  def scaling_to_hf(self) -> dict[str, Any] | None:
    """`rope_scaling` as `rope_from_hf` reads it; theta stands beside it."""
    if self.kind == 'default':
      return None
    original = {'original_length': 'original_max_position_embeddings'}
    names = {'factor': 'factor'}
    if self.kind == 'llama3':
      own = ('low_freq_factor', 'high_freq_factor')
      names |= original | {name: name for name in own}
    elif self.kind == 'yarn':
      own = ('beta_fast', 'beta_slow', 'attention_factor', 'truncate')
      names |= original | {name: name for name in own}
    fields = {theirs: getattr(self, ours) for ours, theirs in names.items()}
    return {'rope_type': self.kind} | fields


def rope_from_hf(config: Mapping[str, Any], theta: float = 10000.0) -> Rope:
  """Reads either spelling: `rope_theta` + `rope_scaling`, or `rope_parameters`.

  Raises:
    ValueError: a kind that is not implemented, or a missing setting, by name.
  """
  new = config.get('rope_parameters') or {}
  scaling = {**(config.get('rope_scaling') or {}), **new}
  kind = scaling.get('rope_type', scaling.get('type', 'default'))
  if kind not in KINDS:
    raise ValueError(
      f'rope type {kind!r} is not supported; choose one of {", ".join(KINDS)}.'
    )
  theta = new.get('rope_theta') or config.get('rope_theta') or theta
  factor = scaling.get('factor')
  for key, x in (('rope_theta', theta), ('factor', factor)):
    if x is not None and not (number(x) and x > 0):
      raise ValueError(f'{key} is {x!r}; give a number above 0.')
  theta = float(theta)
  if kind == 'default':
    return Rope(theta=theta)
  needed = {'linear': ('factor',), 'yarn': ('factor',)}.get(
    kind,
    (
      'factor',
      'low_freq_factor',
      'high_freq_factor',
      'original_max_position_embeddings',
    ),
  )
  missing = [name for name in needed if name not in scaling]
  if missing:
    raise ValueError(f'rope type {kind!r} lacks {", ".join(missing)}.')
  factor = float(scaling['factor'])
  if kind == 'linear':
    return Rope(theta=theta, kind=kind, factor=factor)
  return Rope(
    theta=theta,
    kind=kind,
    factor=factor,
    original_length=scaling.get('original_max_position_embeddings')
    or config.get('max_position_embeddings', 0),
    low_freq_factor=scaling.get('low_freq_factor', 1.0),
    high_freq_factor=scaling.get('high_freq_factor', 4.0),
    beta_fast=scaling.get('beta_fast') or 32.0,
    beta_slow=scaling.get('beta_slow') or 1.0,
    attention_factor=_yarn_attention(scaling) if kind == 'yarn' else 1.0,
    truncate=scaling.get('truncate', True),
  )


def _yarn_attention(scaling: Mapping[str, Any]) -> float:
  if scaling.get('attention_factor') is not None:
    return float(scaling['attention_factor'])
  factor = float(scaling['factor'])
  gain = lambda m: 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0
  if scaling.get('mscale') and scaling.get('mscale_all_dim'):
    return gain(scaling['mscale']) / gain(scaling['mscale_all_dim'])
  return gain(1.0)


def rotation(position_BT: Array, rope: Rope, head_dim: int) -> Array:
  """float32[2, B, T, 1, H]: cos and sin, both halves alike."""
  angle = position_BT[..., None].astype(jnp.float32)
  angle_BTh = angle * jnp.asarray(rope.frequencies(head_dim))
  angle_BT1H = jnp.concatenate([angle_BTh, angle_BTh], -1)[:, :, None]
  return rope.attention_factor * jnp.stack(
    [jnp.cos(angle_BT1H), jnp.sin(angle_BT1H)]
  )


def rotate(x_BTKH: Array, rotation_2BT1H: Array) -> Array:
  """Rotates each head in float32 and returns the dtype of x."""
  cos, sin = rotation_2BT1H
  x = x_BTKH.astype(jnp.float32)
  left, right = jnp.split(x, 2, axis=-1)
  turned = jnp.concatenate([-right, left], axis=-1)
  return (x * cos + turned * sin).astype(x_BTKH.dtype)
