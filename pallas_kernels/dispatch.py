"""Which implementation of an op serves a call."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import devices

_log = logging.getLogger('pallas_kernels')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backend:
  """One implementation of an op.

  `refuses` takes what `run` takes and says why it cannot do it, or None.
  """

  name: str
  run: Callable[..., Any]
  platform: str | None = None  # None: any
  at_least: tuple[int, int] | None = None  # compute capability
  below: tuple[int, int] | None = None
  refuses: Callable[..., str | None] = lambda *args, **options: None

  def refuses_device(self, device: devices.Device) -> str | None:
    """Why a device cannot run this, or None."""
    if self.platform is None:
      return None
    if device.platform != self.platform:
      return f'needs platform {self.platform}, not {device.platform}'
    if self.at_least is None:
      return None
    found = device.capability
    if found is None:
      return f'the compute capability of {device.kind} is not known'
    if found < self.at_least or (self.below and found >= self.below):
      high = f' and below {_dotted(self.below)}' if self.below else ''
      return (
        f'needs compute capability {_dotted(self.at_least)} or more{high}; '
        f'{device.kind} has {_dotted(found)}'
      )
    return None


def triton(run: Callable[..., Any], refuses: Callable[..., Any]) -> Backend:
  """A kernel in Pallas' Triton: Ampere and later."""
  return Backend(
    name='triton', run=run, refuses=refuses, platform='cuda', at_least=(8, 0)
  )


def mosaic_gpu(run: Callable[..., Any], refuses: Callable[..., Any]) -> Backend:
  """A kernel in Pallas' Mosaic GPU, with what only Hopper has."""
  return Backend(
    name='mosaic_gpu',
    run=run,
    refuses=refuses,
    platform='cuda',
    at_least=(9, 0),
    below=(10, 0),
  )


def tpu(run: Callable[..., Any], refuses: Callable[..., Any]) -> Backend:
  """A kernel in Pallas' Mosaic TPU."""
  return Backend(name='tpu', run=run, refuses=refuses, platform='tpu')


def dtypes_refused(
  allowed: Sequence[Any], *named: tuple[str, jax.Array]
) -> str | None:
  """Why a kernel cannot take arrays of these dtypes, or None.

  Args:
    allowed: dtypes of the first array; the others have to have the same.
    *named: each array with its name in the reason.
  """
  (name, first), *others = named
  if first.dtype not in allowed:
    *most, last = [jnp.dtype(x).name for x in allowed]
    return f'dtype {first.dtype} is not {", ".join(most)} or {last}'
  for other, x in others:
    if x.dtype != first.dtype:
      return f'{name} is {first.dtype} and {other} {x.dtype}'
  return None


def call(
  op: str,
  backends: Sequence[Backend],
  backend: str | Sequence[str] | None,
  *args: Any,
  **options: Any,
) -> Any:
  """`run(*args, **options)` of the backend that is asked for.

  None is the first of `backends` that can do it on the device the program is
  for, decided when the program is lowered. So one traced program is right
  wherever it is compiled; on a device that was not known when it was traced it
  takes what runs anywhere. A sequence of names restricts that choice and gives
  its order. A single name is that backend or an error.

  Args:
    op: for messages.
    backends: in order of preference.
    backend: None, a name, or names in order.
    *args: arrays.
    **options: static settings.

  Raises:
    ValueError: no such backend; names those there are.
    NotImplementedError: none of those asked for can do it; says why, and which
      can.
  """
  by_name = {b.name: b for b in backends}
  forced = isinstance(backend, str)
  names = [*by_name] if backend is None else [backend] if forced else [*backend]
  unknown = [name for name in names if name not in by_name]
  if unknown or not names:
    raise ValueError(
      f'{op}: backend is {backend!r}; choose from {sorted(by_name)}.'
    )
  asked = [by_name[name] for name in names]
  reasons = {b.name: b.refuses(*args, **options) for b in backends}
  able = [b for b in asked if reasons[b.name] is None]
  device = devices.known()
  here = [b for b in able if b.refuses_device(device) is None]
  if forced and able and (here or device.platform != able[0].platform):
    # On another platform than the one at hand: lowering has the last word.
    _say(op, device.platform, able[0].name)
    return able[0].run(*args, **options)
  if not here:
    why = [
      f'{b.name}: {reasons[b.name] or b.refuses_device(device)}' for b in asked
    ]
    can = [b.name for b in backends if reasons[b.name] is None]
    raise NotImplementedError(
      f'{op}: {"; ".join(why)}. Backends that can do this call: '
      f'{", ".join(can) or "none"}.'
    )
  first = here[0]
  _say(op, device.platform, first.name)
  if first.platform is None:
    return first.run(*args, **options)
  anywhere = [b for b in able if b.platform is None][:1]
  return lax.platform_dependent(
    *args,
    **{first.platform: functools.partial(first.run, **options)},
    default=functools.partial(anywhere[0].run, **options) if anywhere else None,
  )


@functools.cache
def _say(op: str, platform: str, name: str) -> None:
  _log.info('%s on %s: %s', op, platform, name)


def _dotted(capability: tuple[int, int]) -> str:
  return '.'.join(map(str, capability))
