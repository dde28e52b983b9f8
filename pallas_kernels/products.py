"""Matrix products that accumulate in float32 and train as fast as they run."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

Array = jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: str, a: Array, b: Array) -> Array:
  """float32 einsum of two arrays; gradients multiply in their own dtypes.

  The gradient of a product that leaves bfloat16 as float32 would multiply
  float32 by bfloat16, for which no device has a fast unit: on a CPU it is ten
  times slower than the product itself. Here what comes back is rounded to the
  dtype of the operands first, as in any training in bfloat16. In float32
  nothing changes. Only reverse-mode derivatives exist.

  Args:
    spec: of `einsum`, without dots; every letter of one side stands in the
      other or in the result.
    a: left operand.
    b: right operand.
  """
  return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _forward(spec, a, b):
  return product(spec, a, b), (a, b)


def _backward(spec, operands, grad):
  a, b = operands
  inputs, out = spec.split('->')
  left, right = inputs.split(',')
  dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
  return (
    dot(f'{out},{right}->{left}', grad.astype(b.dtype), b).astype(a.dtype),
    dot(f'{out},{left}->{right}', grad.astype(a.dtype), a).astype(b.dtype),
  )


product.defvjp(_forward, _backward)
