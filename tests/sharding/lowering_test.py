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

from specjax import sharding
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.methods import dflash
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.sampling import row_keys
from specjax.types import Params, Sampling

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
  row = lambda value, dtype: jnp.full((BATCH,), value, dtype)
  law = Sampling(
    temperature_B=row(0, jnp.float32),
    top_k_B=row(0, jnp.int32),
    top_p_B=row(1, jnp.float32),
    min_p_B=row(0, jnp.float32),
    all_greedy=True,
    filtering=False,
  )
  tokens_BT = jnp.zeros((BATCH, 32), jnp.int32)
  stops_BI = jnp.full((BATCH, 4), -1, jnp.int32)
  rows = row(9, jnp.int32), row_keys([0] * BATCH), law, stops_BI
  return prefill(
    method, params, tokens_BT, *rows, row(40, jnp.int32), capacity=256
  )


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
