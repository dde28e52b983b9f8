"""Run by devices_test: what eight devices decode is what one does."""

import jax
import mesh_fixture as fx
import pytest

from specjax import sharding

pytestmark = pytest.mark.usefixtures('quick_compiles')

MESHES = [(1, 8, 1), (2, 4, 1), (8, 1, 1)]  # data x tensor x expert
CASES = [
  *((mesh, name, 'ar') for mesh in MESHES for name in ('odd', 'moe')),
  *((mesh, 'even', 'dflash') for mesh in MESHES),
  ((2, 4, 1), 'odd', 'ddtree'),
  ((1, 8, 1), 'grouped', 'eagle3'),
  ((1, 1, 8), 'moe', 'ar'),
  ((2, 2, 2), 'moe', 'dflash'),
]


def test_there_are_eight():
  assert jax.device_count() == 8


@pytest.mark.parametrize(('mesh', 'name', 'method'), CASES)
def test_ids_and_walks(mesh, name, method):
  """Fails where a shard reads another's heads, rows or experts for its own."""
  one = fx.decoder(fx.CONFIGS[name], method)
  many = fx.on(sharding.make_mesh(*mesh), one)
  want, got = fx.generate(one), fx.generate(many)
  assert got.tokens == want.tokens
  assert got.accepted == want.accepted
  assert got.prompt_tokens == want.prompt_tokens


def test_sampled_coupled_and_cut():
  """Noise, top-k and top-p over a vocabulary in eight pieces."""
  one = fx.decoder(fx.CONFIGS['even'], 'dflash')
  many = fx.on(sharding.make_mesh(tensor=8), one)
  settings = {'temperature': 1.0, 'top_k': 20, 'top_p': 0.95, 'logprobs': True}
  want, got = fx.generate(one, **settings), fx.generate(many, **settings)
  assert got.tokens == want.tokens
  assert got.accepted == want.accepted
  flat = lambda x: [y for row in x.logprobs for y in row]
  assert flat(got) == pytest.approx(flat(want), abs=1e-4)
