"""A scorer on disk: read as written, and refused for anything else."""

import json

import byte_lm_fixture
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_lm_fixture import FOLDER

from specjax.methods import taps
from specjax.weights.safetensors import read_config
from specjax.weights.scorer import check_scorer, save_scorer

DRAFTER = FOLDER / 'dflash'
TARGET = read_config(FOLDER / 'target')
METHOD = taps.build(TARGET, json.loads((DRAFTER / 'config.json').read_text()))


@pytest.fixture
def saved(tmp_path):
  params = METHOD.tree.init(jax.random.key(5), TARGET)
  save_scorer(params, tmp_path / 'scorer', METHOD, TARGET)
  return tmp_path / 'scorer', params


def load(folder, **options):
  return byte_lm_fixture.load('taps', scorer=folder, **options)


def test_round_trip(saved):
  """Fails for a swapped tensor, or one that is not read: the texts are the
  target's whatever the scorer, so nothing else would show it."""
  folder, params = saved
  decoder = load(folder, nodes=9)
  bound, tree = decoder.params.tree, decoder.method.tree
  want = tree.bind(params, decoder.params.target)
  assert jax.tree.structure(bound) == jax.tree.structure(want)
  same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), bound, want)
  assert all(jax.tree.leaves(same))
  embed = np.asarray(decoder.params.target.embed_VD)
  np.testing.assert_allclose(
    bound.token_VJ, embed @ np.asarray(params.token_JD).T, atol=1e-4
  )


@pytest.mark.parametrize(
  ('key', 'value'),
  [
    ('target_vocab', 300),
    ('target_width', 128),
    ('drafter_taps', [0, 3]),
    ('block', 16),
    ('pool', 40),
  ],
)
def test_another_setting_is_refused(saved, key, value):
  """Shapes alone tell neither a vocabulary nor a drafter."""
  folder, _ = saved
  path = folder / 'config.json'
  settings = json.loads(path.read_text())
  here = settings[key]
  path.write_text(json.dumps(settings | {key: value}))
  with pytest.raises(ValueError) as error:
    load(folder)
  assert f'{key} is {value}, here it is {here}' in str(error.value)
  path.unlink()
  check_scorer(folder, METHOD, TARGET)  # the authors' files have none


def test_options_it_was_not_trained_with(saved):
  with pytest.raises(ValueError, match='fanout is 64, here it is 32'):
    load(saved[0], fanout=32)


def test_no_scorer_and_no_learned_tree(saved):
  with pytest.raises(
    ValueError, match=r'needs a trained scorer.*scorer=FOLDER'
  ):
    byte_lm_fixture.load('taps')
  with pytest.raises(ValueError, match='learns nothing; leave scorer out'):
    byte_lm_fixture.load('ddtree', scorer=saved[0])
