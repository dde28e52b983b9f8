"""The causal pass over whole texts, and products that train in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.products import product
from specjax.models import cache as kv
from specjax.models import transformer, whole_text
from specjax.models.config import tiny
from specjax.tree_ops import causal

CONFIG = tiny(layers=2)
TAPS = (-1, 0, 1)


@pytest.mark.parametrize('t', [1, 9, whole_text.LOT, whole_text.LOT + 5])
def test_the_pass_with_a_cache_says_the_same(t):
  """Catches a lot that begins a row too early or sees a key too few."""
  weights = transformer.init(CONFIG, jax.random.key(0), scale=0.2)
  token_BT = jax.random.randint(jax.random.key(1), (2, t), 0, CONFIG.vocab)
  got = transformer.read(weights, token_BT, taps=TAPS)
  want = transformer.forward(
    weights,
    token_BT,
    jnp.broadcast_to(jnp.arange(t), (2, t)),
    kv.empty(CONFIG, 2, 1, jnp.float32),
    jnp.zeros(2, jnp.int32),
    causal(2, t),
    taps=TAPS,
  )
  for name in ('hidden_BTD', 'taps_BTE'):
    np.testing.assert_allclose(
      getattr(got, name), getattr(want, name), atol=2e-5
    )


def test_texts_of_a_row_are_alone():
  """Packed or by themselves: the same hidden states at the same positions."""
  weights = transformer.init(CONFIG, jax.random.key(0), scale=0.2)
  token_BT = jax.random.randint(jax.random.key(1), (1, 12), 0, CONFIG.vocab)
  text_BT = jnp.array([[1] * 5 + [2] * 4 + [0] * 3])
  position_BT = jnp.array([[*range(5), *range(4), *range(3)]])
  packed = transformer.read(
    weights, token_BT, position_BT=position_BT, text_BT=text_BT
  ).hidden_BTD
  for at in (slice(0, 5), slice(5, 9)):
    alone = transformer.read(weights, token_BT[:, at]).hidden_BTD
    np.testing.assert_allclose(packed[:, at], alone, atol=2e-5)


@pytest.mark.parametrize('spec', ['bti,oi->bto', 'bkgth,bknh->bkgtn'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_gradients_of_a_product(spec, dtype):
  """Those of einsum, to the rounding of the operands."""
  size = dict(zip('btiokghn', (2, 5, 6, 4, 3, 2, 7, 5), strict=True))
  inputs, out = spec.split('->')
  keys = jax.random.split(jax.random.key(0), 3)
  shapes = [[size[x] for x in part] for part in (*inputs.split(','), out)]
  a, b, weight = (
    jax.random.normal(k, s).astype(dtype)
    for k, s in zip(keys, shapes, strict=True)
  )
  grads = lambda f, a, b: jax.grad(
    lambda a, b: jnp.sum(f(a, b) * weight.astype(jnp.float32)), argnums=(0, 1)
  )(a, b)
  got = grads(lambda a, b: product(spec, a, b), a, b)
  up = lambda x: x.astype(jnp.float32)
  want = grads(lambda a, b: jnp.einsum(spec, a, b), up(a), up(b))
  assert product(spec, a, b).dtype == jnp.float32
  for x, y in zip(got, want, strict=True):
    assert x.dtype == jnp.dtype(dtype)
    np.testing.assert_allclose(up(x), y, rtol=1e-2, atol=1e-5)
