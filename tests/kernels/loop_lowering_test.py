"""The whole decode loop, at models' sizes, for devices that are not here.

Exported from shapes alone: there are no weights, and nothing is compiled.
"""

import dataclasses
import functools
import importlib
import re

import jax
import jax.numpy as jnp
import pytest

from experiments.roofline_presets import TARGETS
from experiments.shapes import Block, Eagle3
from pallas_kernels import devices
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.method import bind
from specjax.models import transformer
from specjax.sampling import row_keys
from specjax.types import Params, Sampling

TRITON = '__gpu$xla.gpu.triton'
CAPACITY = 2048
# Per platform: what the ops become, by the mark of their custom call.
DEVICES = {
  'NVIDIA H100 80GB HBM3': ('cuda', {'mosaic_gpu_v2', TRITON}),
  'NVIDIA A100-SXM4-80GB': ('cuda', {TRITON}),
  'TPU v5 lite': ('tpu', {'tpu_custom_call'}),
}
SHAPES = {
  'ddtree': Block(layers=5),
  'eagle3': Eagle3(),
}


@functools.cache
def loop_of(model: str, name: str):
  """A loop's function, parameters and state; the last two are shapes."""
  config = dataclasses.replace(TARGETS[model], dtype='bfloat16')
  build = importlib.import_module(f'specjax.methods.{name}').build
  stacked = {'stacked': True} if name == 'ddtree' else {}
  method = build(config, SHAPES[name].config(config), **stacked)
  key = jax.eval_shape(lambda: jax.random.key(0))
  target = transformer.abstract(config, jnp.bfloat16)

  def parameters(target, key):
    drafter = method.drafter.init(key, config)
    return bind(method, Params(target=target, drafter=drafter))

  def state(params):
    row = lambda value, dtype: jnp.full((1,), value, dtype)
    sampling = Sampling(
      temperature_B=row(0, jnp.float32),
      top_k_B=row(0, jnp.int32),
      top_p_B=row(1, jnp.float32),
      min_p_B=row(0, jnp.float32),
      all_greedy=True,
      filtering=False,
    )
    return prefill(
      method,
      params,
      jnp.zeros((1, 256), jnp.int32),
      row(200, jnp.int32),
      row_keys([0]),
      sampling,
      jnp.zeros((1, 1), jnp.int32),
      row(1000, jnp.int32),
      capacity=CAPACITY,
    )

  params = jax.eval_shape(parameters, target, key)
  return method, params, jax.eval_shape(state, params)


@pytest.mark.slow
@pytest.mark.parametrize('kind', DEVICES)
@pytest.mark.parametrize('method', SHAPES)
@pytest.mark.parametrize('model', ['qwen3-4b', 'llama-3.1-8b'])
def test_kernels_no_callback_state_in_place(model, method, kind):
  platform, marks = DEVICES[kind]
  method, params, state = loop_of(model, method)
  run = jax.jit(
    lambda params, state: decode.__wrapped__(method, params, state)[0],
    donate_argnums=1,
  )
  allow = jax.export.DisabledSafetyCheck.custom_call(TRITON)
  with devices.as_if(kind):
    exported = jax.export.export(
      run, platforms=[platform], disabled_checks=[allow]
    )(params, state)
  text = exported.mlir_module()
  found = set(re.findall(r'custom_call @([\w$.]+)', text))
  assert marks <= found
  assert not {name for name in found if 'callback' in name}

  head = next(x for x in text.split('func.func public @main(')[1:])
  head = head.split('{\n')[0]
  arguments = re.split(r'%arg\d+: ', head)[1:]
  leaves = len(jax.tree.leaves(params))
  kept = [x for x in arguments[leaves:] if 'tensor<0x' not in x]
  assert len(kept) == len(jax.tree.leaves(state))
  assert all('tf.aliasing_output' in x for x in kept), kept
