"""A corpus's files: what comes back, and what is refused."""

import errno
import json

import jax
import ml_dtypes
import numpy as np
import pytest

from specjax.models import transformer
from specjax.models.config import tiny
from specjax.text import ByteTokenizer
from specjax.training import corpus_writer, fingerprints
from specjax.training.corpus import MANIFEST, Features, Sample, open_corpus

PLAN = {'1.safetensors': [4, 0, 7], '0.safetensors': [2, 5]}
TOKENIZER = ByteTokenizer(end=61, mask=60)
WEIGHTS = transformer.init(tiny(), jax.random.key(0))


def sample(i, featured=True):
  """A text that is told from every other one by each of its tokens."""
  length, prompt = 5 + i, 2 + i % 3
  tokens = 10 * i + np.arange(length, dtype=np.int32)
  rows = np.arange(length)[:, None] + 100.0 * i
  features = Features(
    (rows + np.zeros(4)).astype(ml_dtypes.bfloat16),
    (-rows + np.zeros(2)).astype(ml_dtypes.bfloat16),
  )
  return Sample(
    tokens, prompt, i, features if featured else None, bool(i % 2), i / 4
  )


def facts(**changes):
  return {
    'target': {
      'name': 'tiny',
      'config': fingerprints.target_fingerprint(tiny()),
      'weights': fingerprints.weights_fingerprint(WEIGHTS),
    },
    'template': {
      'name': 'tiny',
      'fingerprint': fingerprints.template_fingerprint(TOKENIZER),
    },
    'features': {'dtype': 'bfloat16', 'layers': [0, 1], 'widths': [4, 2]},
    'settings': {'seed': 0},
  } | changes


def fill(ids):
  return [sample(i) for i in ids]


@pytest.fixture
def folder(tmp_path):
  corpus_writer.write(tmp_path / 'c', facts(), PLAN, fill)
  return tmp_path / 'c'


def same(a, b):
  assert a[1:3] == b[1:3] and a[4:] == b[4:]
  np.testing.assert_array_equal(a.tokens, b.tokens)
  for x, y in zip(a.features, b.features, strict=True):
    assert x.dtype == y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(x, y)


class TestReading:
  def test_texts_come_back_in_the_order_of_prompts(self, folder):
    """Catches an offset that is off by one, or another shard's features."""
    corpus = open_corpus(folder, tiny(), TOKENIZER, weights=WEIGHTS)
    assert len(corpus) == 5
    for at, i in enumerate([0, 2, 4, 5, 7]):
      same(corpus[at], sample(i))
      assert corpus.length_N[at] == 5 + i
      assert corpus.prompt_N[at] == 2 + i % 3
    assert corpus.read(0, features=False).features is None
    same(corpus[-1], sample(7))
    with pytest.raises(IndexError):
      corpus[5]
    done = corpus.manifest['done']
    assert done['tokens'] == corpus.length_N.sum()
    assert done['wanted'] == (corpus.length_N - corpus.prompt_N).sum()
    assert done['ended'] == 2

  def test_split(self, folder):
    """Catches a text on both sides, or on none."""
    corpus = open_corpus(folder)
    rest, held = corpus.split(last=2)
    assert [s.id for s in held] == [5, 7] and [s.id for s in rest] == [0, 2, 4]
    same(held[1], sample(7))
    rest, held = corpus.split(every=2)
    assert held.id_N.tolist() == [0, 4, 7] and rest.id_N.tolist() == [2, 5]
    assert held.length_N.tolist() == [5, 9, 12]
    assert len({c.fingerprint for c in (corpus, rest, held)}) == 3
    for wrong in ({'last': 5}, {'every': 1}, {'last': 0}, {}):
      with pytest.raises(ValueError, match=r'nothing|last|either'):
        corpus.split(**wrong)

  def test_no_features(self, tmp_path):
    corpus_writer.write(
      tmp_path, facts(features=None), {'0': [1]}, lambda ids: [sample(1, False)]
    )
    corpus = open_corpus(tmp_path)
    assert corpus[0].features is None
    with pytest.raises(ValueError, match='--features=taps'):
      corpus.read(0, features=True)


class TestRefusals:
  def test_another_target(self, folder):
    """Catches a drafter trained on what another model said."""
    wrong = r'tiny \(vocab_size=64\), and this one has vocab_size=72'
    with pytest.raises(ValueError, match=wrong):
      open_corpus(folder, tiny(vocab=72))
    other = transformer.init(tiny(), jax.random.key(1))
    both = '|'.join(map(fingerprints.weights_fingerprint, (WEIGHTS, other)))
    with pytest.raises(ValueError, match=rf'({both}).*({both})'):
      open_corpus(folder, tiny(), weights=other)

  def test_another_template(self, folder):
    other = ByteTokenizer(end=62, mask=60)
    with pytest.raises(ValueError, match='tokenizer and template of tiny'):
      open_corpus(folder, tiny(), other)

  def test_texts_of_no_target_suit_every_one(self, tmp_path):
    corpus_writer.write(tmp_path, facts(target=None), PLAN, fill)
    assert len(open_corpus(tmp_path, tiny(vocab=72), weights=WEIGHTS)) == 5

  @pytest.mark.parametrize(
    'change, named',
    [
      ({'format': 'x'}, 'none of a specjax corpus'),
      ({'version': 2}, 'format version 2; this code reads 1'),
      ({'done': {'samples': 0}}, 'no text yet'),
      ({'done': {'samples': 3}}, '3 of 5 texts'),
    ],
  )
  def test_manifests(self, folder, change, named):
    old = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(old | change))
    with pytest.raises(ValueError, match=named):
      open_corpus(folder)

  def test_no_corpus(self, tmp_path):
    with pytest.raises(ValueError, match=r'holds no manifest\.json'):
      open_corpus(tmp_path)

  def test_damaged_files_are_named(self, folder):
    """Catches a token that changed on the disk."""
    path = folder / '0.safetensors'
    whole = path.read_bytes()
    at = whole.index(sample(5).tokens.tobytes())
    flipped = bytearray(whole)
    flipped[at] ^= 1
    for damage in (whole[:-1], b'', bytes(flipped), b'x' * len(whole)):
      path.write_bytes(damage)
      with pytest.raises(ValueError, match=r'0\.safetensors is damaged'):
        open_corpus(folder)
    path.unlink()
    with pytest.raises(ValueError, match='missing'):
      open_corpus(folder)


class TestFingerprints:
  def test_of_weights(self):
    """The same however they are held; another one for one layer's change."""
    was = fingerprints.weights_fingerprint(WEIGHTS)
    held = transformer.restack(WEIGHTS, stacked=False)
    assert len(held.layers) != len(WEIGHTS.layers)
    assert fingerprints.weights_fingerprint(held) == was
    half = jax.tree.map(lambda x: x.astype('bfloat16'), held)
    assert fingerprints.weights_fingerprint(half) == was
    last = held.layers[-1]
    last = last.replace(q_OD=last.q_OD * 1.1)
    other = held.replace(layers=(*held.layers[:-1], last))
    assert fingerprints.weights_fingerprint(other) != was
    turned = held.replace(layers=held.layers[::-1])
    assert fingerprints.weights_fingerprint(turned) != was


class TestWriting:
  def test_a_full_disk_costs_one_file(self, tmp_path, monkeypatch):
    """Catches a run that cannot be gone on with, or texts made twice."""
    write, made = corpus_writer.write_tensors, []

    def full(path, *args):
      if path.name == '0.safetensors':
        raise OSError(errno.ENOSPC, 'No space left on device')
      write(path, *args)

    def counted(ids):
      made.extend(ids)
      return fill(ids)

    monkeypatch.setattr(corpus_writer, 'write_tensors', full)
    with pytest.raises(ValueError, match=r'No space left.*goes on behind'):
      corpus_writer.write(tmp_path, facts(), PLAN, counted)
    assert len(open_corpus(tmp_path, partial=True)) == 3
    monkeypatch.setattr(corpus_writer, 'write_tensors', write)
    (tmp_path / '0.safetensors.1.part').touch()
    made.clear()
    begun = []
    corpus_writer.write(tmp_path, facts(), PLAN, counted, begun.append)
    assert made == [2, 5] and begun == [3]
    assert len(open_corpus(tmp_path)) == 5
    assert not list(tmp_path.glob('*.part'))

  def test_a_damaged_file_is_made_again(self, folder):
    was = (folder / '1.safetensors').read_bytes()
    manifest = (folder / MANIFEST).read_text()
    (folder / '1.safetensors').write_bytes(was[:-3])
    corpus_writer.write(folder, facts(), PLAN, fill)
    assert (folder / '1.safetensors').read_bytes() == was
    assert (folder / MANIFEST).read_text() == manifest

  def test_other_settings_never_mix(self, folder, tmp_path):
    """Catches texts of two samplings in one corpus."""
    with pytest.raises(ValueError, match='seed was 0 and is 1'):
      corpus_writer.write(folder, facts(settings={'seed': 1}), PLAN, fill)
    (tmp_path / 'thesis.tex').touch()
    with pytest.raises(ValueError, match='not empty and no corpus'):
      corpus_writer.write(tmp_path, facts(), PLAN, fill)
