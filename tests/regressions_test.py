"""Small cases that once failed."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import sampling, tree_ops
from specjax.models import layers, transformer


@pytest.mark.parametrize('nodes', [1, 2])
def test_treeflash_with_a_tree_of_at_most_one_level(nodes):
  """No transition below the root: the tables are empty, not undefined."""
  ids = list(b'Natalia sold clips to 48 of her friends in April.\n')
  asked = {'max_new_tokens': 6, 'temperature': 0.7, 'seed': 9}
  plain = specjax.load().generate([ids], **asked)
  out = specjax.load(method='treeflash', nodes=nodes).generate([ids], **asked)
  assert out.tokens == plain.tokens


@pytest.mark.parametrize('method', ['lookup', 'dflash', 'ddtree', 'treeflash'])
def test_nodes_must_be_whole(method):
  """Fails while loading, and not in the middle of a trace."""
  with pytest.raises(ValueError, match='nodes'):
    specjax.load(method=method, nodes=2.5)


def test_ids_that_are_not_whole_are_refused():
  """`int` would cut 1.5 to another token without a word."""
  with pytest.raises(ValueError, match='id'):
    specjax.load().generate([[1.5, 2]], max_new_tokens=1)


def test_stop_strings_are_checked_before_work():
  with pytest.raises(ValueError, match='stop'):
    specjax.load().generate([[1, 2]], max_new_tokens=1, stop=[3])


@pytest.mark.parametrize(
  ('prompts', 'asked', 'message'),
  [
    (None, {}, 'give a string'),
    (5, {}, 'give a string'),
    ([[True, 2]], {}, 'whole ids'),
    ('hi', {'n': True}, 'n is True'),
    ('hi', {'seed': True}, 'seed'),
    ('hi', {'batch_size': 1.5}, 'batch_size is 1.5'),
    ('hi', {'pad_to': -1}, 'pad_to is -1'),
    ('hi', {'pad_to': 5000}, '0 to 1024'),
    ('hi', {'stop_ids': [1.5]}, 'stop id 1.5'),
    ([{'role': 'user', 'content': None}], {}, 'message 0'),
  ],
)
def test_wrong_kinds_are_named(prompts, asked, message):
  with pytest.raises(ValueError, match=message):
    specjax.load().generate(prompts, **asked)


def test_arrays_are_prompts_too():
  ask = {'max_new_tokens': 4}
  one = specjax.load().generate([65, 66], **ask)
  assert specjax.load().generate(np.array([65, 66]), **ask).tokens == one.tokens
  two = specjax.load().generate(np.array([[65, 66]] * 2), **ask)
  assert two.tokens == one.tokens * 2


@pytest.mark.parametrize(
  'content', ['[]', '{"architectures": ["Qwen3ForCausalLM"]}', '{', '\xff']
)
def test_a_bad_config_is_named(tmp_path, content):
  (tmp_path / 'config.json').write_text(content, encoding='latin-1')
  with pytest.raises(ValueError, match=r'config\.json'):
    specjax.load(target=tmp_path)


def test_deep_trees_know_their_ancestors():
  """Each squaring doubles the depth that is right; 12 needs four."""
  parent_BN = jnp.asarray([[0, *range(12)], [0, *([0] * 6), *range(6)]])
  got_BNN = np.asarray(tree_ops.ancestors(parent_BN))
  for b, parents in enumerate(parent_BN.tolist()):
    for i in range(13):
      above, j = {i}, i
      while j:
        j = parents[j]
        above.add(j)
      assert set(np.flatnonzero(got_BNN[b, i])) == above | {0}


def test_noise_belongs_to_positions():
  """The token at position t is drawn with the noise of t, in every round.

  A shift for all methods alike would leave texts equal to one another and to
  the law; it would only repeat the prefill's noise, or break old seeds.
  """
  decoder = specjax.load()
  out = decoder.generate(
    [65, 66, 67], max_new_tokens=3, temperature=1.0, seed=4
  )
  ids = [65, 66, 67]
  weights = decoder.params.target
  for token in out.tokens[0]:
    t = len(ids)
    hidden = transformer.read(weights, jnp.asarray([ids])).hidden_BTD
    logits = layers.unembed(hidden[:, -1:], weights.head)[0, 0]
    noise = sampling.noise(sampling.row_keys([4]), jnp.asarray([t]), 1, 260)
    assert int(jnp.argmax(logits + noise[0, 0])) == token
    ids.append(token)
