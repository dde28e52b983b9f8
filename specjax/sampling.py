"""Warping and position-keyed noise: one place for all.

Plain decoding, verification and drafting call the same functions, so that "the
target's distribution" means one thing. All of it is float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from specjax.filtering import cut
from specjax.types import Array, Sampling

# Purposes: no two draws of a row share a key, whatever position they are at.
NOISE, DRAFT, ACCEPT, RESIDUAL = range(4)


def row_keys(seeds: Sequence[int]) -> Array:
  """One PRNG key per row; a row keeps its key for life."""
  return jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))


def position_keys(key_B: Array, purpose: int, position_B: Array) -> Array:
  """Keys for one draw at one position of each row."""
  fold = lambda key, at: jax.random.fold_in(
    jax.random.fold_in(key, purpose), at
  )
  return jax.vmap(fold)(key_B, position_B)


def noise(
  key_B: Array, start_B: Array, rows: int, vocab: int, purpose: int = NOISE
) -> Array:
  """float32[B, P, V]: Gumbel noise of the positions start .. start + rows - 1.

  Keyed by absolute position, so that y_t = argmax(log p(. | y_<t) + g_t) is a
  function of weights, prompt and key alone: the same for every method, tree,
  batch and round boundary (the drafter-invariant coupling of Daliri et al.,
  arXiv:2408.07978).

  g = -log(E), E = -log(1 - u) with u on a grid of 2^-32: small E, which is
  large g, keeps full precision. A 23-bit uniform, which is jax's default, could
  not produce tokens rarer than about 1e-7; its high mode draws twice the bits.
  """

  def one(key, start):
    key = jax.random.fold_in(key, purpose)
    keys = jax.vmap(lambda p: jax.random.fold_in(key, start + p))(
      jnp.arange(rows)
    )
    bits_PV = jax.vmap(lambda k: jax.random.bits(k, (vocab,), jnp.uint32))(keys)
    u_PV = (bits_PV.astype(jnp.float32) + 0.5) * 2.0**-32
    # The largest float below 1 keeps E finite.
    return -jnp.log(-jnp.log1p(-jnp.minimum(u_PV, 1 - 2.0**-24)))

  return jax.vmap(one)(key_B, start_B)


def warp(logits_BNV: Array, sampling: Sampling) -> Array:
  """Logits of the distribution that is sampled (not normalised).

  Order: temperature, top-k, top-p, min-p, as in the HF and vLLM samplers. A
  token that ties with the last one kept is kept too. A greedy row becomes
  one-hot at its first maximum.

  Args:
    logits_BNV: [B, N, V], any float dtype; computed in float32.
    sampling: per-row settings.

  Returns:
    float32[B, N, V]; -inf for what is cut.
  """
  z_BNV = logits_BNV.astype(jnp.float32)
  greedy_B11 = (sampling.temperature_B == 0)[:, None, None]
  if sampling.all_greedy:
    return _first_maximum(z_BNV)
  heat_B = jnp.where(sampling.temperature_B == 0, 1.0, sampling.temperature_B)
  w_BNV = z_BNV / heat_B[:, None, None]
  if sampling.filtering:
    w_BNV = cut(w_BNV, sampling)
  return jnp.where(greedy_B11, _first_maximum(z_BNV), w_BNV)


def draw(
  logits_BNV: Array, sampling: Sampling, noise_BNV: Array | None
) -> Array:
  """int32[B, N]: the token each row takes, argmax where it is greedy."""
  if sampling.all_greedy:
    return jnp.argmax(logits_BNV, axis=-1).astype(jnp.int32)
  perturbed_BNV = warp(logits_BNV, sampling) + noise_BNV
  return jnp.argmax(perturbed_BNV, axis=-1).astype(jnp.int32)


def _first_maximum(z_BNV: Array) -> Array:
  best_BN1 = jnp.argmax(z_BNV, axis=-1, keepdims=True)
  index_V = jnp.arange(z_BNV.shape[-1])
  return jnp.where(index_V == best_BN1, 0.0, -jnp.inf)
