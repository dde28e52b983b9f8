"""Which target layers a drafter fuses, told by the features themselves."""

import eagle3_fixture
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eagle3_fixture import TARGET

from specjax.drafters.eagle3.drafter import Eagle3
from specjax.drafters.eagle3.layer_ids import KEY, layer_inputs_of, rule
from specjax.drafters.eagle3.layout import from_hf
from specjax.models import cache, config, transformer

HF = {
  **eagle3_fixture.HF,
  'rms_norm_eps': 1e-5,
}


def nested(ids):
  return {'eagle_config': {KEY: ids}}


def marked():
  """A target in which layer i writes to channel i + 1 and nothing else does.

  Its tokens are one-hot in channel 0, so that the stream that enters layer i
  is not zero in the channels 1 to i: it says how many layers were passed.
  """
  n = 8
  small = config.tiny(vocab=4, width=n + 1, layers=n)
  weights = transformer.init(small, jax.random.key(0), stacked=True)
  (stack,) = weights.layers
  zero = lambda x: jnp.zeros_like(x)
  reads = zero(stack.mlp.gate_FD).at[:, 0, 0].set(1.0)
  writes = zero(stack.mlp.down_DF)
  writes = writes.at[np.arange(n), np.arange(n) + 1, 0].set(1.0)
  stack = stack.replace(
    o_DO=zero(stack.o_DO),
    mlp=stack.mlp.replace(gate_FD=reads, up_FD=reads, down_DF=writes),
  )
  embed_VD = zero(weights.embed_VD).at[:, 0].set(1.0)
  return weights.replace(layers=(stack,), embed_VD=embed_VD)


@pytest.mark.parametrize(
  ('settings', 'entered'),
  [
    ({}, (2, 4, 5)),
    (nested([1, 3, 4]), (2, 4, 5)),
    ({KEY: [2, 4, 5]}, (2, 4, 5)),
    (nested([-1, 2, 7]), (0, 3, 8)),
    ({KEY: [0, 3, 8]}, (0, 3, 8)),
    ({KEY: [1, 3, 6, 8]}, (1, 3, 6)),  # the fourth trains the head
  ],
  ids=str,
)
def test_features_are_what_enters(settings, entered):
  """Which layers the target passed before each feature, seen in the feature.

  Catches every off-by-one between ids and taps, and another order.
  """
  target = marked()
  drafter = Eagle3(settings=from_hf(HF | settings, TARGET), depth=1)
  out = transformer.forward(
    target,
    jnp.zeros((1, 1), jnp.int32),
    jnp.zeros((1, 1), jnp.int32),
    cache.empty(target.config, 1, 1, jnp.float32),
    jnp.zeros(1, jnp.int32),
    jnp.ones((1, 1, 1), bool),
    taps=drafter.taps,
  )
  part_AD = out.taps_BTE.reshape(3, -1)
  assert (np.asarray(part_AD[:, 1:]) != 0).sum(axis=1).tolist() == list(entered)


def test_published_tables():
  """Layers of released drafters, as their authors list them."""
  assert [rule(n) for n in (32, 36, 48, 80)] == [
    (2, 16, 29),
    (2, 18, 33),
    (2, 24, 45),
    (2, 40, 77),
  ]
  assert layer_inputs_of(nested([1, 17, 32]), 36, None) == (2, 18, 33)


@pytest.mark.parametrize(
  ('settings', 'layers', 'reading'),
  [
    # Published so: lists that stand where the other kind does.
    (nested([2, 30, 58]), 61, (2, 30, 58)),
    ({KEY: [1, 46, 90]}, 94, (2, 47, 91)),
  ],
  ids=str,
)
def test_a_list_in_the_wrong_place(settings, layers, reading):
  """Catches a guess between two readings; the option decides."""
  with pytest.raises(ValueError, match='for a target of') as error:
    layer_inputs_of(settings, layers, None)
  assert "aux='inputs' or aux='outputs'" in str(error.value)
  aux = 'inputs' if 'eagle_config' in settings else 'outputs'
  assert layer_inputs_of(settings, layers, aux) == reading


@pytest.mark.parametrize(
  ('settings', 'layers', 'aux', 'message'),
  [
    (nested([2, 4, 5]) | {KEY: [2, 4, 5]}, 8, None, r'twice.*\[2, 4, 5\]'),
    ({}, 6, None, r'are \[2, 3, 3\] in a target of 6'),
    ({}, 3, None, 'give eagle_aux'),
    ({}, 8, 'inputs', 'leave aux out'),
    ({KEY: [1, 2, 3]}, 8, 'both', "aux is 'both'"),
    ({KEY: [1, 2, 9]}, 8, None, r'\[1, 2, 9\], read as inputs, does not fit'),
    ({KEY: [4, 2, 5]}, 8, None, 'rising'),
    ({KEY: '245'}, 8, None, "is '245'; give a list of whole numbers"),
    ({KEY: [2, '4', 5]}, 8, None, 'give a list of whole numbers'),
    ({'eagle_config': [2]}, 8, None, 'give settings by name'),
    ({KEY: [2, 2, 5]}, 8, None, 'rising'),
    ({'eagle_config': {'use_aux_hidden_state': False}}, 8, None, 'EAGLE-1'),
  ],
  ids=str,
)
def test_refused(settings, layers, aux, message):
  with pytest.raises(ValueError, match=message):
    layer_inputs_of(settings, layers, aux)


def test_lists_that_agree():
  both = nested([1, 3, 4]) | {KEY: [2, 4, 5]}
  assert layer_inputs_of(both, 8, None) == (2, 4, 5)
