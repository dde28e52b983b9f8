"""Products counted in a jaxpr: loops as often as they run."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from experiments.flops import matmul_flops
from pallas_kernels.products import product

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))


def test_products_and_their_gradients():
  """2 x rows x columns x inner; a gradient costs the two others."""
  assert matmul_flops(lambda a, b: a @ b, A, B) == 2 * 3 * 4 * 5
  for dot in (jnp.dot, lambda a, b: product('ij,jk->ik', a, b)):
    grad = jax.grad(lambda a, b, dot=dot: jnp.sum(dot(a, b)), argnums=(0, 1))
    assert matmul_flops(grad, A, B) in (2 * 120, 3 * 120)


def test_a_loop_counts_its_rounds():
  """The compiler's own figure counts its body once."""

  def loop(a, b):
    add = lambda total, _: (total + jnp.sum(a @ b), None)
    return lax.scan(add, 0.0, length=7)[0]

  assert matmul_flops(loop, A, B) == 7 * 120
  assert matmul_flops(jax.jit(jax.checkpoint(loop)), A, B) == 7 * 120


def test_the_dearest_branch_counts():
  choose = lambda a, b: lax.cond(
    a[0, 0] > 0, lambda: jnp.sum(a @ b), lambda: jnp.sum(a @ b @ b.T)
  )
  assert matmul_flops(choose, A, B) == 120 + 2 * 3 * 5 * 4


def test_a_loop_of_unknown_length_is_refused():
  grow = lambda a, b: lax.while_loop(
    lambda s: s < 9, lambda s: s + jnp.sum(a @ b), 0.0
  )
  with pytest.raises(ValueError, match='unknown length'):
    matmul_flops(grow, A, B)
