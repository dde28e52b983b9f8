"""Drafters that are found by their target's shape and vocabulary."""

import json
import shutil

import pytest
from byte_lm_fixture import FOLDER

import specjax
from specjax import packaged, text
from specjax.weights.safetensors import read_config

TOKENS = {'a': 0, 'b': 1, ' ': 2, '<end>': 3}


def write_tokenizer(folder, tokens=TOKENS):
  """A word tokenizer; the order of the file is that of `tokens`."""
  model = {'type': 'WordLevel', 'vocab': dict(tokens), 'unk_token': 'a'}
  content = {'version': '1.0', 'model': model, 'added_tokens': []}
  (folder / text.TOKENIZER).write_text(json.dumps(content))


@pytest.fixture
def target(tmp_path):
  folder = tmp_path / 'anywhere'
  shutil.copytree(FOLDER / 'target', folder)
  (folder / text.BYTES).unlink(missing_ok=True)
  write_tokenizer(folder)
  return folder


@pytest.fixture
def family(tmp_path, target, monkeypatch):
  """One with a drafter, and the default's beside it."""
  families = tmp_path / 'pretrained'
  folder = families / 'words'
  shutil.copytree(FOLDER / 'dflash', folder / 'small')
  known = {
    'shape': packaged.shape(read_config(target)),
    'vocabulary': packaged.vocabulary_hash(text.load_tokenizer(target)),
  }
  (folder / packaged.TARGET).write_text(json.dumps(known))
  (folder / 'drafters.json').write_text(
    json.dumps({'dflash': 'small', 'ddtree': 'small'})
  )
  (folder / 'scorers.json').write_text('{}')
  monkeypatch.setattr(packaged, 'FAMILIES', families)
  return folder


def found(target):
  tokenizer = text.load_tokenizer(target)
  return packaged.family(str(target), read_config(target), tokenizer)


class TestFamily:
  def test_by_shape_and_vocabulary(self, target, family):
    assert found(target) == family

  def test_however_the_vocabulary_is_stored(self, target, family):
    write_tokenizer(target, dict(reversed(TOKENS.items())))
    assert found(target) == family

  def test_not_another_vocabulary(self, target, family):
    write_tokenizer(target, TOKENS | {'a': 1, 'b': 0})
    assert found(target) is None

  def test_not_another_shape(self, target, family):
    path = target / 'config.json'
    other = json.loads(path.read_text()) | {'num_hidden_layers': 3}
    path.write_text(json.dumps(other))
    assert found(target) is None

  def test_no_tokenizer(self, target, family):
    (target / text.TOKENIZER).unlink()
    assert found(target) is None

  def test_the_default(self, target):
    config = read_config(packaged.target_folder('default'))
    assert packaged.family('default', config, None) == packaged.PRETRAINED


class TestLoad:
  def test_finds_the_methods_drafter(self, target, family):
    decoder = specjax.load(target, 'ddtree', nodes=4)
    plain = specjax.load(target, 'ar')
    asked = {'max_new_tokens': 6, 'stop_ids': ()}
    out = decoder.generate([[5, 6, 7]], **asked)
    assert out.tokens == plain.generate([[5, 6, 7]], **asked).tokens

  def test_by_a_packaged_name(self, target, family):
    specjax.load(target, 'dflash', 'small')

  def test_what_is_not_packaged(self, target, family):
    with pytest.raises(ValueError, match="'eagle3' needs a drafter and none"):
      specjax.load(target, 'eagle3')
    with pytest.raises(ValueError, match='small does not exist'):
      specjax.load(FOLDER / 'target', 'dflash', 'small')
