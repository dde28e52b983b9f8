"""Compiles the kernels for one device that is not there, at models' sizes.

  python -m experiments.aot_kernels --device=h100

Prints a line of JSON per kernel and size. What is printed was compiled and
never run. `experiments.aot_table` calls this once per device: a compiler that
meets what it cannot do may end the process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from absl import app, flags
from jax.sharding import SingleDeviceSharding

from experiments import aot_devices, run
from experiments.roofline_presets import TARGETS
from pallas_kernels.keep_rows import api as keep_rows
from pallas_kernels.top_candidates import api as top_candidates
from pallas_kernels.tree_attention import api as tree_attention

MODELS = ('qwen3-4b', 'qwen3-8b', 'qwen3-30b-a3b', 'llama-3.1-8b')
SLOTS = 8192
# One token, and a tree.
ROWS = (1, 65)
DRAFTED, BEST = 15, 64  # rows of a draft block, and candidates of each
ARCHITECTURES = {'h100': 'sm_90a', 'a100': 'sm_80'}

# How a compiled program for a TPU gives the chip memory a kernel is lent.
_VMEM = (
  r'custom_call_target="tpu_custom_call".*"used_scoped_memory_configs":'
  r'\[\{"memory_space":"1"[^}]*"size":"(\d+)"'
)

_FLAGS = run.flag_values(__name__)
_DEVICE = flags.DEFINE_enum(
  'device',
  None,
  [*aot_devices.GPUS, *aot_devices.TPUS],
  'What to compile for.',
  required=True,
  flag_values=_FLAGS,
)
_OP = flags.DEFINE_string(
  'op', '', 'Only the ops whose name begins so.', flag_values=_FLAGS
)


@dataclasses.dataclass(frozen=True)
class Call:
  """An op at one size, and the models that have it."""

  op: str
  size: str
  models: tuple[str, ...]
  run: Callable
  args: tuple[jax.ShapeDtypeStruct, ...]
  donate: tuple[int, ...] = ()


def calls(op: str = '') -> Iterator[Call]:
  """Every different call of the ops whose name begins with `op`."""
  found: dict[tuple, Call] = {}
  for model in MODELS:
    for call in _of_model(model):
      key = (call.op, call.size)
      if key in found:
        models = (*found[key].models, model)
        found[key] = dataclasses.replace(call, models=models)
      elif call.op.startswith(op):
        found[key] = call
  return iter(found.values())


def _of_model(model: str) -> Iterator[Call]:
  c = TARGETS[model]
  leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  k, q, h = c.kv_heads, c.q_heads, c.head_dim
  for t in ROWS:
    yield Call(
      'tree_attention',
      f'{t} rows, {q}/{k} heads of {h}, {SLOTS} slots',
      (model,),
      functools.partial(tree_attention.tree_attention, scale=h**-0.5),
      (
        leaf(1, t, q, h),
        leaf(1, k, SLOTS, h),
        leaf(1, k, SLOTS, h),
        jax.ShapeDtypeStruct((1,), jnp.int32),
        leaf(1, k, t, h),
        leaf(1, k, t, h),
        jax.ShapeDtypeStruct((1, t, t), jnp.bool_),
      ),
    )
  yield Call(
    'top_candidates',
    f'{DRAFTED} rows of {c.width}, best {BEST} of {c.vocab}',
    (model,),
    functools.partial(top_candidates.top_candidates, count=BEST),
    (leaf(1, DRAFTED, c.width), leaf(c.vocab, c.width)),
  )
  yield Call(
    'keep_rows',
    f'16 rows, {c.layers} layers, {k} heads of {h}, {SLOTS} slots',
    (model,),
    keep_rows.keep_rows,
    (
      leaf(c.layers, 1, k, SLOTS, h),
      leaf(c.layers, 1, k, 16, h),
      jax.ShapeDtypeStruct((1,), jnp.int32),
    ),
    donate=(0,),
  )


def compiled(device: jax.Device, call: Call):
  """The executable of an op's own choice of backend for a device."""
  sharding = SingleDeviceSharding(device)
  args = [
    jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in call.args
  ]
  with jax.default_device(device):  # what the op chooses by
    jitted = jax.jit(call.run, donate_argnums=call.donate)
    return jitted.trace(*args).lower().compile()


def row_of(name: str, call: Call, dump: pathlib.Path) -> dict:
  """What a compiler says about one call; `dump` is where XLA leaves its files.

  For GPUs: registers and spilled bytes of the op's kernel as ptxas counts them,
  bytes of shared memory, and how many kernels the op launches in all. For TPUs
  `shared_bytes` are of VMEM.
  """
  executable = compiled(aot_devices.device(name), call)
  memory = executable.memory_analysis()
  row = {
    'device': name,
    'op': call.op,
    'size': call.size,
    'models': list(call.models),
    'backend': backend_in(executable.as_text()),
    'argument_bytes': memory.argument_size_in_bytes,
    'temp_bytes': memory.temp_size_in_bytes,
  }
  if name in aot_devices.TPUS:
    vmem = re.search(_VMEM, executable.as_text())
    return row | ({'shared_bytes': int(vmem[1])} if vmem else {})
  return row | _of_gpu(call.op, ARCHITECTURES[name], dump)


def backend_in(text: str) -> str:
  """Which backend's custom call stands in a compiled program."""
  for mark, backend in (
    ('mosaic_gpu', 'mosaic_gpu'),
    ('__gpu$xla.gpu.triton', 'triton'),
    ('triton_kernel', 'triton'),
    ('tpu_custom_call', 'tpu'),
  ):
    if mark in text:
      return backend
  return 'xla'


def _of_gpu(op: str, architecture: str, dump: pathlib.Path) -> dict:
  facts: dict = {}
  for path in dump.iterdir():
    if path.name.endswith('thunk_sequence.txt'):
      text = path.read_text()
      kernels = re.findall(r'k(?:CustomKernel|CustomCall|Copy)\b', text)
      facts['launches'] = len(kernels)
      shared = re.search(rf'{op} grid.*shared_memory: (\d+)', text)
      if shared:
        facts['shared_bytes'] = int(shared.group(1))
    if path.name.endswith('mlir-passes.log'):  # Mosaic's, tens of megabytes
      size = re.search(r'dynamic_shared_memory_size %c(\d+)', path.read_text())
      facts['shared_bytes'] = int(size[1])
    said = ''
    ours = path.suffix == '.ptx' and f'.entry {op}' in path.read_text()
    if ours and not path.with_suffix('.ptxas').exists():  # Mosaic has asked
      command = [_ptxas(), '-v', f'-arch={architecture}', str(path)]
      said = subprocess.run(
        [*command, '-o', os.devnull], capture_output=True, text=True, check=True
      ).stderr
    elif path.name.endswith('.ptxas'):
      said = path.read_text()
    for part in said.split('Compiling entry function')[1:]:
      if op not in part.split('\n')[0]:
        continue
      spilled = re.findall(r'(\d+) bytes spill', part)
      facts['spilled_bytes'] = sum(map(int, spilled))
      facts['registers'] = int(re.search(r'Used (\d+) registers', part)[1])
  return facts


def _ptxas() -> str:
  import nvidia.cuda_nvcc

  return str(pathlib.Path(nvidia.cuda_nvcc.__path__[0]) / 'bin' / 'ptxas')


def show() -> None:
  """A line per call, printed as soon as it is compiled."""
  name = _DEVICE.value
  lacking = aot_devices.missing(name)
  if lacking:
    raise ValueError(lacking)
  with tempfile.TemporaryDirectory() as folder:
    # Read when XLA begins, and by Mosaic at every compile.
    os.environ['XLA_FLAGS'] = f'--xla_dump_to={folder}'
    os.environ['MOSAIC_GPU_DUMP_PTXAS'] = '1'
    os.environ['MOSAIC_GPU_DUMP_TO'] = folder
    # Others may compile for a TPU at the same time.
    os.environ['ALLOW_MULTIPLE_LIBTPU_LOAD'] = '1'
    dump = pathlib.Path(folder)
    for call in calls(_OP.value):
      shutil.rmtree(dump)  # of the call before
      dump.mkdir()
      print(json.dumps(row_of(name, call, dump)), flush=True)


main = run.command(show)


if __name__ == '__main__':
  app.run(main)
