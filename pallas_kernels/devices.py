"""Which device a program is traced for, as far as that is known."""

from __future__ import annotations

import contextlib
import dataclasses
import re

import jax
from jax.sharding import (
  AbstractDevice,
  AbstractMesh,
  AxisType,
  use_abstract_mesh,
)

# Compute capabilities of NVIDIA's data-centre and desktop chips, by a word of
# their name: an abstract device has a name only.
CAPABILITIES = {
  (7, 0): 'V100',
  (7, 5): 'T4',
  (8, 0): 'A100 A800 A30',
  (8, 6): 'A10 A10G A40 A6000',
  (8, 9): 'L4 L40 L40S 4090',
  (9, 0): 'H100 H200 H800 H20 GH200',
  (10, 0): 'B200 GB200',
}


@dataclasses.dataclass(frozen=True)
class Device:
  """A device by name; `capability` is of CUDA devices whose it is known."""

  platform: str  # 'cpu', 'cuda', 'rocm' or 'tpu'
  kind: str
  capability: tuple[int, int] | None = None


def known() -> Device:
  """The device that the caller's program will be compiled for.

  A mesh names one, of devices that are there or not (`as_if`), else
  `jax.default_device` does, else it is the first real one.
  """
  abstract = jax.sharding.get_abstract_mesh().abstract_device
  if abstract is not None:
    kind, first = abstract.device_kind, jax.devices()[0]
    found = first if first.device_kind == kind else None
    capability = getattr(found, 'compute_capability', None)
    return _device(abstract.platform, kind, capability)
  default = jax.config.jax_default_device
  if isinstance(default, str):
    default = jax.devices(default)[0]
  device = jax.devices()[0] if default is None else default
  capability = getattr(device, 'compute_capability', None)
  return _device(device.platform, device.device_kind, capability)


@contextlib.contextmanager
def as_if(kind: str):
  """Programs traced inside are for a device of this kind, present or not.

  Args:
    kind: as JAX names it: 'NVIDIA H100', 'NVIDIA A100', 'TPU v5 lite', ...
  """
  platform = 'tpu' if kind.startswith('TPU') else 'gpu'
  device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
  # Auto: arrays' types stay as they are without a mesh.
  mesh = AbstractMesh(
    (1,), ('x',), axis_types=(AxisType.Auto,), abstract_device=device
  )
  with use_abstract_mesh(mesh):
    yield


def _device(platform: str, kind: str, capability: str | None) -> Device:
  if platform != 'gpu':
    return Device(platform, kind)
  if capability is not None:
    if not re.fullmatch(r'\d+\.\d+', capability):  # gfx942 and the like
      return Device('rocm', kind)
    major, minor = capability.split('.')
    return Device('cuda', kind, (int(major), int(minor)))
  words = set(re.split(r'[ \-]', kind))
  for known_capability, names in CAPABILITIES.items():
    if words & set(names.split()):
      return Device('cuda', kind, known_capability)
  return Device('cuda', kind)
