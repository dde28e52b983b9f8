"""Compilers for devices that are not there: topologies of GPUs and TPUs.

Needs the extra `aot`: libtpu for TPUs; the CUDA plugin, its PJRT client and
ptxas for GPUs. Nothing runs on a device.
"""

from __future__ import annotations

import importlib.util

import jax
from jax.experimental import topologies

_GPU = """gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32
 shared_memory_per_block: 49152 shared_memory_per_core: {per_core}
 threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
 block_dim_limit_z: 65535 memory_bandwidth: {bandwidth}
 l2_cache_size: {l2} clock_rate_ghz: {clock} device_memory_size: 84942979072
 shared_memory_per_block_optin: {optin}
 cuda_compute_capability {{ major: {major} minor: 0 }}
 registers_per_core_limit: 65536 registers_per_block_limit: 65536 }}
 platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
 device_description_str: "{name}" """
# NVIDIA data sheets and the CUDA programming guide.
GPUS = {
  'h100': _GPU.format(
    per_core=233472,
    cores=132,
    fpus=128,
    bandwidth=3352320000000,
    l2=52428800,
    clock=1.98,
    optin=232448,
    major=9,
    name='NVIDIA H100 80GB HBM3',
  ),
  'a100': _GPU.format(
    per_core=167936,
    cores=108,
    fpus=64,
    bandwidth=2039000000000,
    l2=41943040,
    clock=1.41,
    optin=166912,
    major=8,
    name='NVIDIA A100-SXM4-80GB',
  ),
}
# The smallest that exist: a host has four chips, and one is compiled for.
TPUS = {'v5e': 'v5e:2x2', 'v6e': 'v6e:2x2'}


def missing(name: str) -> str | None:
  """What has to be installed to compile for a device, or None."""
  packages = (
    {'libtpu': 'libtpu'}
    if name in TPUS
    else {
      'jax_cuda12_plugin': 'jax-cuda12-plugin',
      'jax_plugins.xla_cuda12': 'jax-cuda12-pjrt',
      'nvidia.cuda_nvcc': 'nvidia-cuda-nvcc-cu12',
    }
  )
  lacking = [p for module, p in packages.items() if not _found(module)]
  if not lacking:
    return None
  return f'{", ".join(lacking)} is not installed (the extra `aot`)'


def device(name: str) -> jax.Device:
  """A device to compile for.

  Raises:
    ValueError: no such device.
  """
  if name in GPUS:
    return topologies.get_topology_desc(
      '', 'cuda', target_config=GPUS[name], topology='1x1x1'
    ).devices[0]
  if name in TPUS:
    return topologies.get_topology_desc(TPUS[name], 'tpu').devices[0]
  raise ValueError(
    f'there is no device {name!r}; choose {", ".join([*GPUS, *TPUS])}.'
  )


def _found(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False
