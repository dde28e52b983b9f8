"""Checkpoints of any struct: what is saved comes back, or an error says why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.models import config as configs
from specjax.models import transformer
from specjax.types import Array, Context, Sampling, static, struct
from specjax.weights import checkpoint


@struct
class State:
  """Like a DecodeState: typed keys, None, bool and integer leaves, statics."""

  context: Context
  key_B: Array
  sampling: Sampling
  done_B: Array
  stacks: tuple[Array, ...]
  absent: Array | None = None
  depth: int = static(default=0)


def _state(fill: int, depth: int = 3) -> State:
  return State(
    context=Context(
      tokens_BT=jnp.full((2, 4), fill), length_B=jnp.full(2, fill)
    ),
    key_B=sampling.row_keys([fill, fill + 1]),
    sampling=Sampling(
      temperature_B=jnp.full(2, fill / 3),
      top_k_B=jnp.full(2, fill),
      top_p_B=jnp.ones(2),
      min_p_B=jnp.zeros(2),
      filtering=False,
    ),
    done_B=jnp.asarray([fill > 0, False]),
    stacks=(jnp.full(3, fill, jnp.bfloat16), jnp.full((1, 2), float(fill))),
    depth=depth,
  )


def _assert_equal(a, b):
  """Same structure (statics too), dtypes and values."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype and isinstance(y, jax.Array)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_weights_round_trip(tmp_path):
  """Catches leaves that swap places, and dtypes lost on the way."""
  config = configs.tiny(layers=2)
  weights = transformer.init(config, jax.random.key(0), jnp.bfloat16)
  checkpoint.save(tmp_path / 'w', weights)
  like = transformer.abstract(config, jnp.bfloat16)
  _assert_equal(weights, checkpoint.restore(tmp_path / 'w', like))


@pytest.mark.parametrize('abstract', [True, False])
def test_state_round_trip(tmp_path, abstract):
  """Catches keys that come back as plain words, and values taken from `like`
  instead of from the file."""
  saved, like = _state(5), _state(0)
  if abstract:
    like = jax.eval_shape(lambda: _state(0))
  checkpoint.save(tmp_path / 's', saved)
  back = checkpoint.restore(tmp_path / 's', like)
  _assert_equal(saved, back)
  draw = lambda s: jax.vmap(lambda k: jax.random.normal(k, (3,)))(s.key_B)
  np.testing.assert_array_equal(draw(saved), draw(back))


def test_statics_come_from_like(tmp_path):
  checkpoint.save(tmp_path / 's', _state(5, depth=3))
  assert checkpoint.restore(tmp_path / 's', _state(0, depth=7)).depth == 7


def test_dtype_follows_like(tmp_path):
  checkpoint.save(tmp_path / 'x', {'a': jnp.full(2, 1.5)})
  like = {'a': jax.ShapeDtypeStruct((2,), jnp.bfloat16)}
  _assert_equal(
    {'a': jnp.full(2, 1.5, jnp.bfloat16)},
    checkpoint.restore(tmp_path / 'x', like),
  )


def test_existing_folder_is_kept_unless_told(tmp_path):
  checkpoint.save(tmp_path / 'x', {'a': jnp.zeros(2)})
  with pytest.raises(ValueError, match='overwrite=True'):
    checkpoint.save(tmp_path / 'x', {'a': jnp.ones(2)})
  like = {'a': jnp.full(2, 9.0)}
  np.testing.assert_array_equal(
    checkpoint.restore(tmp_path / 'x', like)['a'], 0
  )
  checkpoint.save(tmp_path / 'x', {'a': jnp.ones(2)}, overwrite=True)
  np.testing.assert_array_equal(
    checkpoint.restore(tmp_path / 'x', like)['a'], 1
  )


def test_errors_name_what_differs(tmp_path):
  """Catches a restore that stops at the first difference, or cuts arrays."""
  with pytest.raises(ValueError, match=r'no checkpoint at .*nowhere'):
    checkpoint.restore(tmp_path / 'nowhere', {'a': jnp.zeros(2)})
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ValueError, match='empty is no complete checkpoint'):
    checkpoint.restore(tmp_path / 'empty', {'a': jnp.zeros(2)})
  path = tmp_path / 'x'
  checkpoint.save(path, {'a': jnp.zeros((2, 3)), 'old': jnp.zeros(1)})
  like = {'a': jnp.zeros((3, 2)), 'new': jnp.zeros(4)}
  with pytest.raises(ValueError) as error:
    checkpoint.restore(path, like)
  message = str(error.value)
  assert 'wrong shape: a, stored [2, 3], expected [3, 2]' in message
  assert 'missing: new, expected [4]' in message
  assert 'unexpected: old' in message
