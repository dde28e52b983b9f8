"""Where every leaf goes: from its name, on meshes that are not there."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from specjax import sharding
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.weights.leaves import leaves_by_path


def mesh_of(data=1, tensor=1, expert=1):
  return AbstractMesh(
    (data, tensor, expert), sharding.AXES, axis_types=(AxisType.Auto,) * 3
  )


def specs(config, **sizes):
  shapes = transformer.abstract(config, jnp.float32)
  plans = sharding.planned(shapes, mesh_of(**sizes), config.head_dim)
  leaves, _ = leaves_by_path(plans)
  short = lambda path: path.removeprefix('layers.0.')
  return {short(path): x.sharding.spec for path, x in leaves.items()}


MOE = tiny(
  experts=8, experts_per_token=2, expert_mlp=24, sparse_layers=(0, 1, 2)
)


class TestParameters:
  def test_dense(self):
    """Columns of q, k, v, gate and up; rows of o and down; the vocabulary."""
    found = specs(tiny(kv_heads=4), tensor=4)
    both = ('tensor', 'expert')
    assert found['embed_VD'] == found['head_VD'] == P(both, None)
    for name in ('q_OD', 'k_OD', 'v_OD', 'mlp.gate_FD', 'mlp.up_FD'):
      assert found[name] == P(None, both, None), name
    for name in ('o_DO', 'mlp.down_DF'):
      assert found[name] == P(None, None, both), name
    for name in ('norm_D', 'attn_norm_D', 'q_norm_H', 'mlp_norm_D'):
      assert found[name] == P(), name

  def test_heads_stay_whole(self):
    """24 rows of two key heads: 8 divides them, and would cut a head."""
    found = specs(tiny(q_heads=8, kv_heads=2), tensor=8)
    assert found['k_OD'] == found['v_OD'] == P(None, None, None)
    assert found['q_OD'] == P(None, ('tensor', 'expert'), None)

  def test_what_is_not_divisible_is_whole(self):
    found = specs(tiny(vocab=29, mlp=44), tensor=8)
    assert found['embed_VD'] == P(None, None)
    assert found['mlp.gate_FD'] == P(None, None, None)

  def test_experts_leave_their_width_to_tensor(self):
    found = specs(MOE, tensor=2, expert=4)
    assert found['mlp.gate_XDF'] == P(None, 'expert', None, 'tensor')
    assert found['mlp.down_XFD'] == P(None, 'expert', 'tensor', None)
    assert found['mlp.router_XD'] == P()
    assert found['q_OD'] == P(None, 'tensor', None)  # 4 heads, not 8

  def test_data_splits_no_parameters(self):
    assert not any(
      axis
      for spec in specs(MOE, data=8).values()
      for axis in spec
      if axis and 'data' in axis
    )


class TestAxes:
  @pytest.mark.parametrize(
    ('count', 'want'),
    [(16, ('tensor', 'expert')), (4, ('tensor',)), (2, ()), (12, ('tensor',))],
  )
  def test_as_many_as_divide(self, count, want):
    mesh = mesh_of(tensor=4, expert=2)
    assert sharding.axes_of('V', count, mesh) == want


class TestWithoutAMesh:
  def test_nothing_is_said(self):
    """No constraint, no shard_map: programs are what they were."""
    x_B = jnp.ones(4)
    text = str(jax.make_jaxpr(lambda x: sharding.constrained({'x_B': x}))(x_B))
    assert 'sharding' not in text
    assert sharding.active() is None
    assert sharding.planned({'q_OD': x_B}, None, 1)['q_OD'] is x_B
    assert sharding.placed_rows(x_B, None) is x_B

  def test_a_mesh_of_one_is_none(self):
    with jax.set_mesh(sharding.make_mesh()):
      assert sharding.active() is None


class TestWrongCalls:
  @pytest.mark.parametrize('size', [0, -1, 1.5, True, '2'])
  def test_sizes(self, size):
    with pytest.raises(ValueError, match=r'tensor is .*; give a whole number'):
      sharding.make_mesh(tensor=size)

  def test_more_than_there_are(self):
    there = jax.device_count()
    with pytest.raises(
      ValueError, match=f'tensor={there + 1}.*there are {there}.*at most'
    ):
      sharding.make_mesh(tensor=there + 1)

  @pytest.mark.parametrize('mesh', ['2x4', (2, 4), mesh_of(tensor=2)])
  def test_no_mesh(self, mesh):
    with pytest.raises(ValueError, match='make_mesh'):
      sharding.check_mesh(mesh)
