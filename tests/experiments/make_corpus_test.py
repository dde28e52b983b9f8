"""Corpora that are made: whose words they hold, and what a kill costs."""

import json
import pathlib
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

import specjax
from experiments import corpus_prompts, make_corpus, respond
from experiments.make_corpus import Making, make
from specjax.models import transformer
from specjax.text import ByteTokenizer
from specjax.training.corpus import open_corpus

pytestmark = pytest.mark.usefixtures('quick_compiles')

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ['She has 3', 'Tom', 'How many eggs?', 'In May he sold', 'A b']
DECODED = {
  'target': 'default',
  'temperatures': (0.0, 1.0),
  'max_new_tokens': 6,
  'seed': 5,
  'rows': 2,
  'shard': 2,
  'taps': (1, 3),
}


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'set.jsonl'
  lines = [{'prompt': p, 'answer': p[::-1] + 'é'} for p in TEXTS]
  path.write_text('\n'.join(map(json.dumps, lines)))
  return str(path)


@pytest.fixture(scope='module')
def default():
  return specjax.load('default')


def files(folder):
  return {p.name: p.read_bytes() for p in pathlib.Path(folder).iterdir()}


class TestAnswers:
  def test_the_file_s_own(self, prompts, tmp_path, default):
    """Catches a prompt's token that is wanted, and a missing end."""
    out = str(tmp_path / 'c')
    make(Making(prompts=prompts, out=out, answers=True, shard=2))
    corpus = open_corpus(out, default.config, default.tokenizer)
    for i, text in enumerate(TEXTS):
      one, asked = corpus[i], list(f'{text}\n'.encode())
      answer = list(f'{text[::-1]}é'.encode())
      assert one.tokens.tolist() == [*asked, *answer, 257]
      assert one.prompt_length == len(asked)
      assert one.ended and one.id == i and one.features is None
    assert corpus.manifest['target'] is None

  def test_cut_answers_do_not_end(self, prompts, tmp_path):
    """Catches an end that a cut put there, and one that the cap cost."""
    out = str(tmp_path / 'c')
    making = dict(prompts=prompts, out=out, answers=True, chat=False, limit=2)
    make(Making(**making, max_new_tokens=6))
    long, short = open_corpus(out)
    assert long.tokens.tolist() == list(b'She has 3' + b'3 sah ')
    assert not long.ended
    assert short.tokens.tolist() == [*b'Tom', *'moTé'.encode(), 257]
    assert short.ended

  def test_a_killed_process(self, prompts, tmp_path):
    """Catches half a file that counts, and texts that a restart changes."""
    flags = [f'--prompts={prompts}', '--answers', '--shard=2']
    make(
      Making(prompts=prompts, out=str(tmp_path / 'a'), answers=True, shard=2)
    )
    code = """if True:
      import os, sys
      from specjax.weights import files
      from experiments import make_corpus
      made = []
      save = files.save_file
      def killed(tensors, path, metadata):
        made.append(path)
        save(tensors, path, metadata)
        if len(made) == 2:
          os.truncate(path, 100)
          os._exit(9)
      files.save_file = killed
      make_corpus._FLAGS(sys.argv)
      make_corpus.show()
    """
    command = [sys.executable, '-c', code, *flags, f'--out={tmp_path}/b']
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == 9
    assert len(list((tmp_path / 'b').glob('*.part'))) == 1
    assert len(open_corpus(tmp_path / 'b', partial=True)) in (1, 2)
    make(
      Making(prompts=prompts, out=str(tmp_path / 'b'), answers=True, shard=2)
    )
    assert files(tmp_path / 'a') == files(tmp_path / 'b')


class TestDecoded:
  def test_the_target_s_own(self, prompts, tmp_path, default):
    """Catches responses of a neighbour, another seed or another temperature.

    And taps that are a layer or a token off.
    """
    out = str(tmp_path / 'c')
    make(Making(prompts=prompts, out=out, **DECODED))
    weights = default.params.target
    corpus = open_corpus(
      out, default.config, default.tokenizer, weights=weights
    )
    asked = [list(f'{text}\n'.encode()) for text in TEXTS]
    told = default.generate(
      asked, max_new_tokens=6, temperature=[0.0, 1.0, 0.0, 1.0, 0.0], seed=5
    )
    for i, one in zip(range(len(TEXTS)), corpus, strict=True):
      assert one.tokens.tolist() == asked[i] + told.tokens[i]
      assert one.prompt_length == len(asked[i])
      assert one.temperature == i % 2
      assert one.ended == (told.finish_reason[i] == 'stop')
      seen = transformer.read(weights, one.tokens[None], taps=(1, 3))
      for stored, own in zip(
        one.features, (seen.taps_BTE, seen.hidden_BTD), strict=True
      ):
        own = np.asarray(own[0])
        np.testing.assert_allclose(
          stored.astype(np.float32), own, rtol=2**-7, atol=1e-3
        )
    assert corpus.manifest['features']['layers'] == [1, 3]

  def test_ends_are_kept(self):
    """Catches an end token that is cut off: no drafter would learn it."""
    decoder = specjax.load('default')
    decoder.tokenizer = ByteTokenizer(end=ord(' '), mask=256)
    decoded = respond.Decoded(
      decoder=decoder,
      cap=9,
      rows=2,
      temperatures=(0.0, 1.0),
      top_p=1.0,
      seed=0,
      taps=None,
    )
    prompts = {i: list(text.encode()) for i, text in enumerate(TEXTS)}
    samples = decoded(prompts, list(prompts), lambda: None)
    assert any(s.ended for s in samples)
    for sample in samples:
      response = sample.tokens[sample.prompt_length :].tolist()
      assert (ord(' ') in response) == sample.ended
      assert ord(' ') not in response[:-1]
      assert sample.ended or len(response) == 9

  def test_goes_on_between_files(self, prompts, tmp_path, monkeypatch):
    """Catches texts that depend on where a run was interrupted."""
    make(Making(prompts=prompts, out=str(tmp_path / 'a'), **DECODED))
    results, asked = respond.Decoded._results, []

    def interrupted(self, requests, tick):
      asked.append([r.id for r in requests])
      if len(asked) == 2:
        raise KeyboardInterrupt
      return results(self, requests, tick)

    monkeypatch.setattr(respond.Decoded, '_results', interrupted)
    making = Making(prompts=prompts, out=str(tmp_path / 'b'), **DECODED)
    with pytest.raises(KeyboardInterrupt):
      make(making)
    make(making)
    assert sorted(chain(asked[0], *asked[2:])) == list(range(len(TEXTS)))
    assert files(tmp_path / 'a') == files(tmp_path / 'b')
    with pytest.raises(ValueError, match='seed was 5 and is 6'):
      make(Making(prompts=prompts, out=making.out, **DECODED | {'seed': 6}))


def test_plan():
  """Catches lengths mixed in a file, and short prompts that come first."""
  prompts = {i: [0] * ((37 * i) % 101 + 1) for i in range(100)}
  plan = make_corpus.plan(prompts, 10, 0)
  assert sorted(chain(*plan.values())) == list(range(100))
  spread = [
    max(len(prompts[i]) for i in ids) - min(len(prompts[i]) for i in ids)
    for ids in plan.values()
  ]
  assert max(spread) <= 11
  assert list(plan) != sorted(plan)
  assert make_corpus.plan(prompts, 10, 0) == plan


class TestErrors:
  @pytest.mark.parametrize(
    'line, named',
    [
      ('{"prompt": "x"}', r"line 2 has no text in the field 'answer'"),
      ('{"prompt": "x", "answer": 3}', r'line 2 has no text'),
      ('{"prompt": "x', r'line 2 is not JSON'),
    ],
  )
  def test_lines(self, tmp_path, line, named):
    path = tmp_path / 'set.jsonl'
    path.write_text(f'{{"prompt": "a", "answer": "b"}}\n{line}\n')
    with pytest.raises(ValueError, match=named):
      make(Making(prompts=str(path), out=str(tmp_path / 'c'), answers=True))
    assert not (tmp_path / 'c').exists()

  @pytest.mark.parametrize(
    'wrong, named',
    [
      ({'temperatures': ()}, 'temperatures are'),
      ({'temperatures': (-1.0,)}, 'temperatures are'),
      ({'top_p': 0.0}, 'top_p is'),
      ({'rows': 0}, 'rows is 0'),
      ({'shard': 0}, 'shard is 0'),
      ({'max_new_tokens': 0}, 'max_new_tokens is 0'),
      ({'answers': True, 'taps': (1,)}, '--answers loads none'),
    ],
  )
  def test_settings(self, wrong, named):
    with pytest.raises(ValueError, match=named):
      Making(prompts='x', out='y', **wrong)

  def test_taps_that_are_not_there(self, prompts, tmp_path):
    with pytest.raises(ValueError, match=r'\(99,\) do not fit'):
      make(Making(prompts=prompts, out=str(tmp_path / 'c'), taps=(99,)))

  def test_prompts_without_room(self, tmp_path, default):
    """Catches a text that is dropped and not counted."""
    most = default.config.max_length
    path = tmp_path / 'set.jsonl'
    line = lambda n: json.dumps({'prompt': 'x' * n, 'answer': 'yz'})
    path.write_text(f'{line(most - 2)}\n{line(most - 1)}\n')
    making = Making(prompts=str(path), out=str(tmp_path / 'c'), answers=True)
    assert make(making)['prompts']['too_long'] == [1]
    only = open_corpus(making.out)[0]
    assert len(only.tokens) == most and not only.ended
    path.write_text(line(2 * most))
    with pytest.raises(ValueError, match='leaves room'):
      make(Making(prompts=str(path), out=str(tmp_path / 'd'), answers=True))


class TestSources:
  def test_hub(self, prompts, monkeypatch):
    """A data set's only file, or the one that is named."""
    import huggingface_hub as hub

    listed = ['README.md', 'data/train.jsonl']
    monkeypatch.setattr(
      hub.HfApi, 'list_repo_files', lambda self, repo, repo_type: listed
    )
    got = lambda repo, file, repo_type: f'{prompts}/../{repo}|{file}'
    monkeypatch.setattr(hub, 'hf_hub_download', got)
    read = lambda path, limit: [path]
    monkeypatch.setattr(corpus_prompts, 'read_prompts', read)
    source = lambda name: str(corpus_prompts.read_source(name, None)[0])
    assert source('some/set').endswith('some/set|data/train.jsonl')
    assert source('some/set/a/b.jsonl').endswith('some/set|a/b.jsonl')
    listed.append('test.jsonl')
    with pytest.raises(ValueError, match=r'2 JSON-lines files.*test\.jsonl'):
      source('some/set')

  def test_unreachable_hub(self, monkeypatch):
    import huggingface_hub as hub

    def unreachable(*args, **kwargs):
      raise ConnectionError

    monkeypatch.setattr(hub.HfApi, 'list_repo_files', unreachable)
    with pytest.raises(ValueError, match=r'ConnectionError.*pass its path'):
      corpus_prompts.read_source('some/set', None)
    with pytest.raises(ValueError, match='neither a file'):
      corpus_prompts.read_source('./no/such.jsonl', None)


class TestFlags:
  def parse(self, *given):
    make_corpus._FLAGS.unparse_flags()
    make_corpus._FLAGS(['x', '--prompts=p', '--out=o', *given])
    return make_corpus.from_flags()

  def test_all_settings(self):
    """Catches a flag that reaches nothing, and a default of its own."""
    assert self.parse() == Making(prompts='p', out='o')
    making = self.parse(
      '--temperatures=0,0.7', '--features=taps', '--taps=1,3', '--nochat'
    )
    assert making.temperatures == (0.0, 0.7) and making.taps == (1, 3)
    assert not making.chat
    with pytest.raises(ValueError, match='--temperatures is a'):
      self.parse('--temperatures=a')
    for half in ('--features=taps', '--taps=1'):
      with pytest.raises(ValueError, match='or neither'):
        self.parse(half)
