"""Run by devices_test: files to shards, and decoders as users make them."""

import math
import pathlib
import shutil

import jax
import numpy as np
import pytest
from byte_lm_fixture import load
from safetensors.numpy import load_file, save_file

import specjax
from specjax import sharding
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec
from specjax.weights.files import Stored
from specjax.weights.leaves import leaves_by_path
from specjax.weights.safetensors import load_target, save_target

pytestmark = pytest.mark.usefixtures('quick_compiles')

MODELS = pathlib.Path(__file__).parents[1] / 'goldens' / 'models'
PROMPT = 'Tom has 3 boxes of 12 pens. How many pens does he have?\n'
RANKS = tuple(range(32, 96))


class TestFiles:
  @pytest.mark.parametrize('stacked', [True, False])
  @pytest.mark.parametrize(
    'name', ['qwen3', 'qwen3_moe', 'llama_bf16', 'qwen3_tied']
  )
  def test_shards_are_slices(self, name, stacked):
    """Catches a slice of the wrong axis, part, expert or transposition."""
    mesh = sharding.make_mesh(2, 2, 2)
    options = {'dtype': None, 'stacked': stacked}
    want = load_target(MODELS / name, **options)
    got = load_target(MODELS / name, **options, mesh=mesh)
    plans = sharding.planned(want, mesh, want.config.head_dim)
    leaves = [leaves_by_path(tree)[0] for tree in (want, got, plans)]
    for path, whole in leaves[0].items():
      assert leaves[1][path].sharding == leaves[2][path].sharding, path
      np.testing.assert_array_equal(leaves[1][path], whole, err_msg=path)

  def test_no_more_is_read_than_lies_on_a_device(self, monkeypatch):
    """No split tensor is ever whole on the host, and none is read twice."""
    read, sizes = [], {}
    plain = Stored.read

    def counted(self, index=None):
      content = plain(self, index)
      read.append((self.name, content.size))
      sizes[self.name] = math.prod(self.shape)
      return content

    monkeypatch.setattr(Stored, 'read', counted)
    mesh = sharding.make_mesh(data=4, tensor=2)
    load_target(MODELS / 'qwen3', dtype=None, stacked=True, mesh=mesh)
    split = [(name, n) for name, n in read if 'proj' in name]
    assert len(split) == 2 * len({name for name, _ in split})
    assert all(2 * n == sizes[name] for name, n in split)
    assert sum(n for _, n in read) == sum(sizes.values())

  def test_errors_are_those_of_one_device(self, tmp_path):
    folder = tmp_path / 'target'
    shutil.copytree(MODELS / 'qwen3', folder)
    tensors = load_file(folder / 'model.safetensors')
    del tensors['model.norm.weight']
    (folder / 'model.safetensors').unlink()
    save_file(tensors, folder / 'model.safetensors')
    with pytest.raises(ValueError, match=r'missing: model\.norm\.weight'):
      specjax.load(folder, mesh=sharding.make_mesh(tensor=2))

  def test_what_was_split_is_written_whole(self, tmp_path):
    mesh = sharding.make_mesh(tensor=2)
    options = {'dtype': None, 'stacked': True}
    save_target(load_target(MODELS / 'qwen3', **options, mesh=mesh), tmp_path)
    want = load_target(MODELS / 'qwen3', **options)
    jax.tree.map(
      np.testing.assert_array_equal, load_target(tmp_path, **options), want
    )


class TestLoad:
  @pytest.mark.parametrize(
    ('method', 'options'),
    [
      ('treeflash', {'nodes': 8, 'vocab': FrSpec(ranks=RANKS)}),
      ('dflash', {'vocab': EvoSpec(ranks=RANKS, buffer=16)}),
    ],
  )
  def test_text_of_byte_lm(self, method, options):
    """Wrapped drafters, whose arrays were made from split ones."""
    settings = {'max_new_tokens': 32, 'stop_ids': ()}
    want = load(method, **options).generate(PROMPT, **settings)
    mesh = sharding.make_mesh(2, 4)
    got = load(method, **options, mesh=mesh).generate(PROMPT, **settings)
    assert got.text == want.text
    assert got.accepted == want.accepted

  def test_a_learned_tree(self):
    settings = {'max_new_tokens': 24, 'stop_ids': ()}
    options = {'method': 'taps', 'nodes': 12}
    want = specjax.load(**options).generate(PROMPT, **settings)
    mesh = sharding.make_mesh(tensor=2)
    got = specjax.load(**options, mesh=mesh).generate(PROMPT, **settings)
    assert got.text == want.text
    assert got.accepted == want.accepted

  def test_it_must_be_a_mesh(self):
    with pytest.raises(ValueError, match='make_mesh'):
      specjax.load(mesh={'tensor': 2})
