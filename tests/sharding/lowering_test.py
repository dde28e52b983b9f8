"""Programs for meshes of GPUs and TPUs that are not there: each shard's ops."""

import math
import re

import jax
import jax.numpy as jnp
import methods_fixture as fx
import pytest
from jax.sharding import (
  AbstractDevice,
  AbstractMesh,
  AxisType,
  use_abstract_mesh,
)

from experiments.states import after_prompt
from specjax import sharding
from specjax.decode.loop import decode
from specjax.inputs import make_rows
from specjax.methods import dflash
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.types import Params

TRITON = '__gpu$xla.gpu.triton'
DEVICES = {
  'NVIDIA H100 80GB HBM3': ('cuda', {'mosaic_gpu_v2', TRITON}),
  'TPU v5 lite': ('tpu', {'tpu_custom_call'}),
}
CONFIG = tiny(
  vocab=1024,
  width=512,
  layers=3,
  q_heads=8,
  kv_heads=4,
  head_dim=128,
  mlp=1024,
  dtype='bfloat16',
)
BATCH = 4


def mesh_of(kind, platform):
  device = AbstractDevice(
    device_kind=kind,
    num_cores=1,
    platform='tpu' if platform == 'tpu' else 'gpu',
  )
  return AbstractMesh(
    (2, 4, 1),
    sharding.AXES,
    axis_types=(AxisType.Auto,) * 3,
    abstract_device=device,
  )


def state_of(method, params):
  """Room for 256 tokens."""
  rows = make_rows(
    [[0] * 9] * BATCH,
    vocab=CONFIG.vocab,
    max_length=CONFIG.max_length,
    max_new_tokens=200,
  )
  return after_prompt(method, params, rows)


@pytest.mark.slow
@pytest.mark.parametrize('kind', DEVICES)
def test_every_kernel_runs_on_its_shard(kind):
  """What a custom call takes is a shard's own: SPMD never sees one."""
  platform, marks = DEVICES[kind]
  mesh = mesh_of(kind, platform)
  drafter_config = next(
    c
    for c in fx.drafter_configs(CONFIG)
    if c['architectures'] == ['DFlashDraftModel']
  )
  method = dflash.build(CONFIG, drafter_config)
  target = transformer.abstract(CONFIG, jnp.bfloat16)
  drafter = jax.eval_shape(
    lambda: method.drafter.init(jax.random.key(0), CONFIG)
  )
  drafter = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), drafter
  )
  params = Params(
    target=sharding.planned(target, mesh, CONFIG.head_dim),
    drafter=sharding.planned(drafter, mesh, CONFIG.head_dim),
  )
  run = jax.jit(
    lambda params, state: decode.__wrapped__(method, params, state)[0]
  )
  with use_abstract_mesh(mesh):
    state = jax.eval_shape(lambda params: state_of(method, params), params)
    text = (
      run.trace(params, state).lower(lowering_platforms=(platform,)).as_text()
    )
  found = set(re.findall(r'custom_call @([\w$.]+)', text))
  assert marks <= found
  calls = re.findall(r'custom_call @(?:mosaic\w+|__gpu\S+?|tpu_\w+)\(.*', text)
  shapes = ' '.join(line.rpartition(' : ')[2] for line in calls)
  # 3 layers x 2 of 4 rows x 1 of 4 heads of the cache; 256 of 1024 tokens.
  lead = re.findall(r'tensor<([\dx]*)x256x128xbf16>', shapes)
  assert max(math.prod(map(int, x.split('x'))) for x in lead) == 3 * 2 * 1
  assert 'tensor<256x512xbf16>' in shapes
  assert 'tensor<1024x512xbf16>' not in shapes
