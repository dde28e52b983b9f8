"""Who serves a call: by shapes, by the device it is lowered for, by name."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import devices
from pallas_kernels.keep_rows.api import keep_rows
from pallas_kernels.top_candidates.api import top_candidates
from pallas_kernels.tree_attention.api import tree_attention

TRITON = '__gpu$xla.gpu.triton'
MARKS = {
  'mosaic_gpu': 'mosaic_gpu_v2',
  'triton': TRITON,
  'tpu': 'tpu_custom_call',
  'xla': None,
}
DEVICES = {
  'NVIDIA H100 80GB HBM3': 'cuda',
  'NVIDIA A100-SXM4-80GB': 'cuda',
  'Tesla T4': 'cuda',
  'TPU v5 lite': 'tpu',
}


def attention_args(t=5, slots=128, dtype='bfloat16'):
  leaf = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
  return (
    leaf(1, t, 8, 64),
    leaf(1, 2, slots, 64),
    leaf(1, 2, slots, 64),
    jax.ShapeDtypeStruct((1,), jnp.int32),
    leaf(1, 2, t, 64),
    leaf(1, 2, t, 64),
    jax.ShapeDtypeStruct((1, t, t), jnp.bool_),
  )


def attend(*args, backend=None):
  return tree_attention(*args, scale=0.1, backend=backend)


def lowered_for(kind, op, args):
  """The custom calls of a program exported for a device that is not here."""
  allow = jax.export.DisabledSafetyCheck.custom_call(TRITON)
  with devices.as_if(kind):
    exported = jax.export.export(
      jax.jit(op), platforms=[DEVICES[kind]], disabled_checks=[allow]
    )(*args)
  return set(re.findall(r'custom_call @([\w$.]+)', exported.mlir_module()))


class TestAutomatic:
  @pytest.mark.parametrize(
    ('kind', 'backend'),
    zip(DEVICES, ('mosaic_gpu', 'triton', 'xla', 'tpu'), strict=True),
  )
  def test_the_device_decides(self, kind, backend):
    found = lowered_for(kind, attend, attention_args())
    mark = MARKS[backend]
    assert (mark in found) if mark else not found & {*MARKS.values()}

  @pytest.mark.parametrize(
    ('kind', 'args', 'backend'),
    [
      ('NVIDIA H100 80GB HBM3', dict(dtype='float32'), 'triton'),
      ('NVIDIA H100 80GB HBM3', dict(slots=100), 'triton'),
      ('TPU v5 lite', dict(dtype='float16'), 'xla'),
    ],
  )
  def test_shapes_decide_among_those_that_fit(self, kind, args, backend):
    found = lowered_for(kind, attend, attention_args(**args))
    assert found & {*MARKS.values()} == {MARKS[backend]} - {None}

  @pytest.mark.parametrize(
    ('kind', 'backend'),
    [('NVIDIA H100 80GB HBM3', 'triton'), ('TPU v5 lite', 'tpu')],
  )
  def test_the_other_ops(self, kind, backend):
    leaf = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    best = functools.partial(top_candidates, count=4)
    args = (leaf(1, 3, 128), leaf(300, 128))
    assert MARKS[backend] in lowered_for(kind, best, args)
    args = leaf(2, 1, 2, 128, 64), leaf(2, 1, 2, 5, 64)
    start = jax.ShapeDtypeStruct((1,), jnp.int32)
    assert MARKS[backend] in lowered_for(kind, keep_rows, (*args, start))

  def test_here_there_is_no_kernel(self):
    text = jax.jit(attend).lower(*attention_args()).as_text()
    assert 'custom_call' not in text


class TestByName:
  def test_a_name_is_that_backend_wherever_it_is_lowered(self):
    lowered = jax.jit(functools.partial(attend, backend='mosaic_gpu')).trace(
      *attention_args()
    )
    text = lowered.lower(lowering_platforms=('cuda',)).as_text()
    assert MARKS['mosaic_gpu'] in text
    with pytest.raises(ValueError, match='interpret'):
      lowered.lower()  # for this CPU: no silent way back to XLA

  def test_another_generation_is_refused(self):
    args = attention_args()
    with (
      devices.as_if('NVIDIA A100-SXM4-80GB'),
      pytest.raises(NotImplementedError, match=r'9\.0 or more.*has 8\.0'),
    ):
      jax.eval_shape(functools.partial(attend, backend='mosaic_gpu'), *args)

  def test_shapes_are_refused_with_those_that_can(self):
    args = attention_args(dtype='float32')
    with pytest.raises(
      NotImplementedError,
      match=r'mosaic_gpu: dtype float32.*triton, tpu, cpu, xla',
    ):
      jax.eval_shape(functools.partial(attend, backend='mosaic_gpu'), *args)

  def test_names_in_order(self):
    op = functools.partial(attend, backend=('triton', 'mosaic_gpu', 'xla'))
    found = lowered_for('NVIDIA H100 80GB HBM3', op, attention_args())
    assert found & {*MARKS.values()} == {TRITON}
    with pytest.raises(NotImplementedError, match='needs platform'):
      jax.eval_shape(
        functools.partial(attend, backend=('triton', 'tpu')), *attention_args()
      )

  def test_an_unknown_name(self):
    with pytest.raises(ValueError, match="'cuda'; choose from"):
      jax.eval_shape(
        functools.partial(attend, backend='cuda'), *attention_args()
      )


class TestDevices:
  @pytest.mark.parametrize(
    ('kind', 'capability'),
    [
      ('NVIDIA H200', (9, 0)),
      ('NVIDIA L4', (8, 9)),
      ('NVIDIA GeForce RTX 4090', (8, 9)),
      ('NVIDIA B200', (10, 0)),
      ('NVIDIA Unheard-of', None),
    ],
  )
  def test_capability_of_a_name(self, kind, capability):
    with devices.as_if(kind):
      assert devices.known().capability == capability
    assert devices.known().platform == 'cpu'
