"""Checkpoints as files: what is read, what is written, what is refused."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specjax.models import config as configs
from specjax.models import transformer
from specjax.models.names import Tensor, target_tensors
from specjax.weights import files
from specjax.weights.safetensors import (
  load_target,
  load_tensors,
  save_target,
  save_tensors,
)

FOLDER = pathlib.Path(__file__).parent.parent / 'goldens' / 'models'
MODELS = sorted(path.name for path in FOLDER.iterdir())


def _assert_equal(a, b):
  """Same structure (the configuration too), dtypes and bits."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype and x.shape == y.shape
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def _copy(name: str, folder: pathlib.Path) -> pathlib.Path:
  folder = folder / name
  shutil.copytree(FOLDER / name, folder)
  return folder


def _edit(folder: pathlib.Path, **changes) -> pathlib.Path:
  """Replaces tensors of model.safetensors (dots for __), drops those None."""
  path = folder / 'model.safetensors'
  tensors = load_file(path)
  for name, value in changes.items():
    name = name.replace('__', '.')
    if value is None:
      del tensors[name]
    else:
      tensors[name] = value
  path.unlink()
  save_file(tensors, path)
  return folder


@pytest.mark.parametrize('name', MODELS)
def test_stacks_hold_the_layers_in_order(name):
  """Catches a slice that lands at another layer or expert, in both layouts."""
  folder = FOLDER / name
  single = load_target(folder, dtype=None, stacked=False)
  stacked = load_target(folder, dtype=None, stacked=True)
  assert single.dtype == jnp.dtype(single.config.dtype)
  _assert_equal(transformer.restack(single, True), stacked)
  tensors = {}
  for path in folder.glob('*.safetensors'):
    tensors |= load_file(path)
  last = single.config.layers - 1
  name = f'model.layers.{last}.self_attn.k_proj.weight'
  np.testing.assert_array_equal(single.layers[last].k_OD[0], tensors[name])
  if last in single.config.sparse_layers:
    name = f'model.layers.{last}.mlp.experts.5.down_proj.weight'
    down_FD = single.layers[last].mlp.down_XFD[0, 5]
    np.testing.assert_array_equal(down_FD, tensors[name].T)


@pytest.mark.parametrize('stacked', [False, True])
@pytest.mark.parametrize(
  'name', ['llama_bf16', 'llama3', 'qwen3_yarn', 'qwen3_moe', 'qwen3_moe_mixed']
)
def test_written_target_reads_as_the_same(name, stacked, tmp_path):
  """Catches transposes or names that only the reader gets right: the tensors
  must equal those that transformers wrote."""
  weights = load_target(FOLDER / name, dtype=None, stacked=stacked)
  save_target(weights, tmp_path / 'new')
  _assert_equal(
    weights, load_target(tmp_path / 'new', dtype=None, stacked=stacked)
  )
  theirs = {}
  for path in (FOLDER / name).glob('*.safetensors'):
    theirs |= load_file(path)
  ours = load_file(tmp_path / 'new' / 'model.safetensors')
  assert set(ours) == set(theirs)
  for key, value in theirs.items():
    assert ours[key].dtype == value.dtype
    np.testing.assert_array_equal(ours[key], value)
  names = sorted(path.name for path in (tmp_path / 'new').iterdir())
  assert names == ['config.json', 'model.safetensors']  # no scratch file


def test_written_files(tmp_path):
  """Catches files for the owner only, and a dtype that is not the weights'."""
  weights = load_target(FOLDER / 'llama_bf16', dtype='float32', stacked=True)
  assert weights.config.dtype == 'bfloat16'
  save_target(weights, tmp_path)
  save_target(weights, tmp_path)  # replaces
  plain = tmp_path / 'plain'
  plain.touch()
  mode = lambda path: path.stat().st_mode
  assert mode(tmp_path / 'model.safetensors') == mode(plain)
  again = load_target(tmp_path, dtype=None, stacked=True)
  wanted = dataclasses.replace(weights.config, dtype='float32')
  _assert_equal(weights.replace(config=wanted), again)
  header = (tmp_path / 'model.safetensors').read_bytes()[:100]
  assert b'"format":"pt"' in header


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
  """Catches a writer that truncates before it knows that it can finish."""
  tree, rows = {'a': jnp.ones(3)}, [Tensor('a', ('x',))]
  save_tensors(tree, rows, tmp_path / 'f')

  def full_disk(tensors, path, metadata):
    path.write_bytes(b'half')
    raise OSError('no space left')

  monkeypatch.setattr(files, 'save_file', full_disk)
  with pytest.raises(OSError, match='no space'):
    save_tensors({'a': jnp.zeros(3)}, rows, tmp_path / 'f')
  np.testing.assert_array_equal(load_file(tmp_path / 'f')['x'], 1)
  assert [path.name for path in tmp_path.iterdir()] == ['f']


def test_rows_that_do_not_fit_the_tree(tmp_path):
  """Catches a leaf that is silently not written."""
  tree = {'a': jnp.ones(3)}
  with pytest.raises(ValueError, match='one row'):
    save_tensors(tree, [Tensor('b', ('x',))], tmp_path / 'f')
  with pytest.raises(ValueError, match='no room for exactly 2'):
    save_tensors(tree, [Tensor('a', ('x', 'y'))], tmp_path / 'f')
  assert not (tmp_path / 'f').exists()


def test_one_layer_and_odd_sizes(tmp_path):
  """Catches a stack of one layer that loses or keeps an axis too many."""
  config = configs.tiny(layers=1, vocab=7, tied=True, kv_heads=1)
  weights = transformer.init(config, jax.random.key(0), stacked=False)
  save_target(weights, tmp_path)
  stored = load_file(tmp_path / 'model.safetensors')
  assert stored['model.layers.0.mlp.up_proj.weight'].shape == (48, 32)
  assert stored['model.norm.weight'].shape == (32,)
  assert 'lm_head.weight' not in stored
  _assert_equal(weights, load_target(tmp_path, dtype=None, stacked=True))


def test_all_misfits_in_one_error(tmp_path):
  """Catches a loader that stops at the first, or fills gaps silently."""
  folder = _edit(
    _copy('llama', tmp_path),
    model__norm__weight=None,
    model__layers__1__self_attn__q_proj__bias=np.zeros(48, np.float32),
    model__layers__0__mlp__up_proj__weight=np.zeros((47, 48), np.float32),
    # As many numbers, another shape: a plain reshape would take it.
    model__layers__1__mlp__up_proj__weight=np.zeros((32, 72), np.float32),
    model__embed_tokens__weight=np.zeros((96, 48), np.int8),
  )
  for stacked in (False, True):
    with pytest.raises(ValueError) as error:
      load_target(folder, dtype='float32', stacked=stacked)
    message = str(error.value)
    layer = 'model.layers'
    for line in (
      'missing: model.norm.weight, expected [48]',
      f'unexpected: {layer}.1.self_attn.q_proj.bias, stored [48]',
      f'wrong shape: {layer}.0.mlp.up_proj.weight, stored [47, 48], '
      'expected [48, 48]',
      f'wrong shape: {layer}.1.mlp.up_proj.weight, stored [32, 72], '
      'expected [48, 48]',
      'wrong dtype: model.embed_tokens.weight, stored I8',
    ):
      assert line in message
    assert str(folder) in message and message.count('\n') == 6


def test_names_that_are_no_parameters(tmp_path):
  """Rotary frequencies and a tied head's copy are passed over; a tied head
  with other content is not."""
  folder = _copy('qwen3_tied', tmp_path)
  embed = load_file(folder / 'model.safetensors')['model.embed_tokens.weight']
  inv_freq = np.zeros(8, np.float32)
  _edit(
    folder,
    lm_head__weight=embed,
    model__layers__0__self_attn__rotary_emb__inv_freq=inv_freq,
  )
  _assert_equal(
    load_target(FOLDER / 'qwen3_tied', dtype=None, stacked=True),
    load_target(folder, dtype=None, stacked=True),
  )
  _edit(folder, lm_head__weight=embed + 1)
  with pytest.raises(ValueError, match=r'lm_head\.weight.*no copy'):
    load_target(folder, dtype=None, stacked=True)


def test_prefix_may_be_absent(tmp_path):
  """A base model's file has no `model.`; without leave it is an error."""
  folder = _copy('qwen3_tied', tmp_path)
  path = folder / 'model.safetensors'
  tensors = load_file(path)
  save_file({k.removeprefix('model.'): v for k, v in tensors.items()}, path)
  weights = load_target(folder, dtype=None, stacked=False)
  _assert_equal(
    load_target(FOLDER / 'qwen3_tied', dtype=None, stacked=False), weights
  )
  rows = target_tensors(weights.config, stacked=False)
  with pytest.raises(ValueError, match=r'missing: model\.norm\.weight'):
    load_tensors(path, rows, weights, 'float32')


def test_generic_tree(tmp_path):
  """Dicts, integer leaves, one file, patterns, names with a prefix too many.

  Catches ids cast to the dtype of the weights: bfloat16 holds 257 as 256.
  """
  ids = np.asarray([257, 1], np.int64)
  w_23 = np.arange(6, dtype=np.float32).reshape(2, 3)
  path = tmp_path / 'drafter.safetensors'
  save_file({'m.w': w_23, 'd2t': ids, 'fc.bias': np.zeros(1)}, path)
  rows = [Tensor('ids', ('d2t',)), Tensor('part.0.w_32', ('w',), True)]
  shapes = {
    'ids': jax.ShapeDtypeStruct((2,), jnp.int32),
    'part': (jax.eval_shape(lambda: {'w_32': jnp.zeros((3, 2))}),),
  }
  kw = dict(optional_prefix='m.')
  tree = load_tensors(path, rows, shapes, 'bfloat16', ignore=['*.bias'], **kw)
  wanted = {
    'ids': jnp.asarray([257, 1], jnp.int32),
    'part': ({'w_32': jnp.asarray(w_23.T, jnp.bfloat16)},),
  }
  _assert_equal(wanted, tree)
  with pytest.raises(ValueError, match=r'unexpected: fc\.bias'):
    load_tensors(path, rows, shapes, 'bfloat16', **kw)
  save_tensors(tree, rows, path)
  _assert_equal(tree, load_tensors(path, rows, shapes, 'bfloat16'))


def test_damaged_and_missing_files(tmp_path):
  """Every error names the file."""
  load = lambda folder: load_target(folder, dtype=None, stacked=True)
  with pytest.raises(ValueError, match=r'nowhere holds no config\.json'):
    load(tmp_path / 'nowhere')
  folder = _copy('qwen3', tmp_path)
  path = folder / 'model.safetensors'
  content = path.read_bytes()
  for broken in (content[:-1], content[:40], b'', b'not a checkpoint at all'):
    path.write_bytes(broken)
    with pytest.raises(ValueError, match=r'model\.safetensors is damaged'):
      load(folder)
  path.unlink()
  with pytest.raises(ValueError, match='holds neither'):
    load(folder)
  for text in ('{"architectures": [', '\x00'):
    (folder / 'config.json').write_text(text)
    with pytest.raises(ValueError, match=r'config\.json is not valid JSON'):
      load(folder)
  with pytest.raises(ValueError, match=r'gone\.safetensors does not exist'):
    load_tensors(tmp_path / 'gone.safetensors', [], {}, 'float32')


def test_shards(tmp_path):
  """A lost shard, a lost tensor and a spoiled index, each named."""
  folder = _copy('qwen3_moe', tmp_path)
  load = lambda: load_target(folder, dtype=None, stacked=True)
  shard = folder / 'model-00002-of-00003.safetensors'
  tensors = load_file(shard)
  lost = sorted(tensors)[0]
  save_file({k: v for k, v in tensors.items() if k != lost}, shard)
  with pytest.raises(ValueError, match=f'missing: {lost}'):
    load()
  shard.unlink()
  with pytest.raises(ValueError, match=r'00002-of-00003.* does not exist'):
    load()
  index = folder / 'model.safetensors.index.json'
  index.write_text('{')
  with pytest.raises(ValueError, match=r'index\.json is not valid JSON'):
    load()
  index.write_text(json.dumps({'metadata': {}}))
  with pytest.raises(ValueError, match=r'index\.json has no weight_map'):
    load()


def test_bfloat16_without_torch():
  """Bits arrive as stored, and neither torch nor transformers is imported."""
  folder = FOLDER / 'llama_bf16'
  raw = (folder / 'model.safetensors').read_bytes()
  size = int.from_bytes(raw[:8], 'little')
  entry = json.loads(raw[8 : 8 + size])['model.norm.weight']
  begin, end = (8 + size + at for at in entry['data_offsets'])
  wanted = np.frombuffer(raw[begin:end], ml_dtypes.bfloat16)
  weights = load_target(folder, dtype='bfloat16', stacked=True)
  np.testing.assert_array_equal(np.asarray(weights.norm_D), wanted)
  program = (
    'import sys; from specjax.weights.safetensors import load_target;'
    f'w = load_target({str(folder)!r}, dtype="float32", stacked=False);'
    'assert w.dtype == "float32";'
    'assert not {"torch", "transformers"} & set(sys.modules)'
  )
  subprocess.run([sys.executable, '-c', program], check=True)
