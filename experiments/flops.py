"""Multiplications of a program, counted in its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
  """Floating-point operations of all matrix products of a call.

  A loop's body counts as often as it runs, which the compiler's own figure does
  not; of branches the dearest one counts.

  Raises:
    ValueError: a loop whose length is not known before it runs.
  """
  return _of(jax.make_jaxpr(function)(*args).jaxpr)


def _of(jaxpr: Any) -> int:
  return sum(map(_equation, jaxpr.eqns))


def _equation(eqn: Any) -> int:
  name, params = eqn.primitive.name, eqn.params
  if name == 'dot_general':
    (contract, _), _ = params['dimension_numbers']
    shape = eqn.invars[0].aval.shape
    inner = math.prod(shape[i] for i in contract)
    return 2 * inner * math.prod(eqn.outvars[0].aval.shape)
  if name == 'while':
    raise ValueError(
      'the program has a loop of unknown length; count one of its rounds.'
    )
  if name == 'cond':
    return max(_of(branch.jaxpr) for branch in params['branches'])
  times = params['length'] if name == 'scan' else 1
  return times * sum(map(_of, _inner(params)))


def _inner(params: dict[str, Any]) -> list[Any]:
  """The jaxprs that an equation calls; one that is there twice counts once."""
  found = {}
  for value in params.values():
    jaxpr = getattr(value, 'jaxpr', value)
    if hasattr(jaxpr, 'eqns'):
      found[id(jaxpr)] = jaxpr
  return list(found.values())
