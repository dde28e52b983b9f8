"""Two real processes, two simulated devices each, that talk over loopback."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import methods_fixture as fx
import one_process
import pytest

from specjax.methods import dflash
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.weights.files import write_json
from specjax.weights.safetensors import save_target, save_tensors

pytestmark = pytest.mark.usefixtures('quick_compiles')

HERE = pathlib.Path(__file__).parent
DENSE = tiny(vocab=32, q_heads=4, kv_heads=4)
TARGETS = {
  'dense': DENSE,
  'moe': tiny(
    vocab=32,
    family='qwen3_moe',
    experts=4,
    experts_per_token=2,
    expert_mlp=24,
    sparse_layers=(0, 2),
    q_heads=4,
    kv_heads=4,
  ),
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Random targets, and a DFlash drafter for the dense one, as files."""
  folder = tmp_path_factory.mktemp('models')
  for name, config in TARGETS.items():
    weights = transformer.init(config, jax.random.key(7), scale=0.3)
    save_target(weights, folder / name)
  config = next(
    c
    for c in fx.drafter_configs(DENSE)
    if c['architectures'] == ['DFlashDraftModel']
  )
  drafter = dflash.build(DENSE, config).drafter
  params = drafter.init(jax.random.key(1), DENSE)
  (folder / 'dflash').mkdir()
  write_json(folder / 'dflash' / 'config.json', config)
  save_tensors(
    params, drafter.tensors(), folder / 'dflash' / 'model.safetensors'
  )
  return folder


def free_port() -> int:
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def test_two_processes_say_what_one_device_does(folder):
  """Each reads its own slices, and both know every row in the end."""
  script, port = str(HERE / 'one_process.py'), str(free_port())
  flags = '--xla_force_host_platform_device_count=2'
  environment = {
    **os.environ,
    'XLA_FLAGS': flags,
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(HERE.parents[1]),
  }
  started = [
    subprocess.Popen(
      [sys.executable, script, str(rank), port, str(folder)],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for rank in range(2)
  ]
  try:
    want = one_process.answers(folder)
    said = [p.communicate(timeout=600) for p in started]
  finally:
    for p in started:
      p.kill()
  for p, (out, err) in zip(started, said, strict=True):
    assert p.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == want
