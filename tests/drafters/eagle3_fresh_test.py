"""A new EAGLE-3 drafter: it fits its target, saves, and loads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.drafters.eagle3.fresh import config_of, fresh, inputs_for
from specjax.drafters.eagle3.layer_ids import rule
from specjax.drafters.eagle3.layout import from_hf
from specjax.drafters.eagle3.weights import abstract, bind, unbind
from specjax.methods import eagle3
from specjax.models import config, transformer
from specjax.weights.files import WEIGHTS
from specjax.weights.safetensors import (
  load_tensors,
  save_tensors,
  stored_shapes,
)

V = 20
TARGET = transformer.init(
  config.tiny(vocab=V, width=8, layers=4), jax.random.key(0)
)
KEY = jax.random.key(1)
IDS = np.array([0, 1, 4, 9, 19])


@pytest.mark.parametrize('layers', range(1, 13))
def test_any_depth_of_target(layers):
  """Catches layers that a short target lacks, and lists read two ways."""
  target = config.tiny(layers=layers)
  settings = from_hf(config_of(target, target.vocab), target)
  assert settings.inputs == inputs_for(layers)
  assert len(settings.inputs) == min(layers + 1, 3)
  if layers >= 7:
    assert settings.inputs == rule(layers)


@pytest.mark.parametrize('id_V', [None, IDS], ids=['all', 'few'])
def test_a_round_through_a_file(id_V, tmp_path):
  """Catches rows beside the wrong ids, and maps that do not come back."""
  settings, raw = fresh(
    TARGET, KEY, id_V=id_V, changes={'intermediate_size': 24}
  )
  method = eagle3.build(TARGET.config, settings, width=1)
  drafter = method.drafter
  bound = drafter.bind(raw, TARGET)
  head = drafter.head(bound, TARGET)
  ids = np.arange(V) if id_V is None else id_V
  assert (head.id_V is None) == (id_V is None)
  if id_V is not None:
    np.testing.assert_array_equal(head.id_V, ids)
  np.testing.assert_array_equal(head.rows_VD, TARGET.head[ids])
  assert bound.layers[0].mlp.gate_FD.shape[0] == 24
  save_tensors(
    unbind(drafter.settings, bound), drafter.tensors(), tmp_path / WEIGHTS
  )
  settings['tensors'] = stored_shapes(tmp_path)
  read = from_hf(settings, TARGET.config)
  assert read == drafter.settings
  again = load_tensors(
    tmp_path, drafter.tensors(), abstract(read, 'float32'), 'float32'
  )
  jax.tree.map(np.testing.assert_array_equal, bind(read, again), bound)


def test_an_embedding_that_was_left_out_stays_so():
  """Catches parameters that cannot be saved as they came: all zeros."""
  settings = from_hf(
    config_of(TARGET.config, V) | {'target_hidden_size': 8}, TARGET.config
  )
  settings = dataclasses.replace(settings, own_embedding=True)
  like = abstract(settings, 'float32')
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
  bound = bind(settings, zeros)
  assert bound.embed_VD is None
  jax.tree.map(np.testing.assert_array_equal, unbind(settings, bound), zeros)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'id_V': [3, 1]}, 'give one or more whole numbers, rising'),
    ({'id_V': [1.0, 2.0]}, 'whole numbers'),
    ({'id_V': []}, 'one or more'),
    ({'id_V': [1, V]}, 'tokens from 1 to 20; the target has 0 to 19'),
    (
      {
        'changes': {
          'hidden_size': 16,
          'target_hidden_size': 8,
        }
      },
      'width and the embedding of its target',
    ),
    ({'changes': {'draft_vocab_size': 7}}, 'is 7, and id_V has 20'),
  ],
  ids=str,
)
def test_refused(options, message):
  with pytest.raises(ValueError, match=message):
    fresh(TARGET, KEY, **options)
