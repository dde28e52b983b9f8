"""Side by side with transformers: turns, going on, tables, bad input.

Most of it with peers that only pretend; the last test is with transformers
itself, where that is installed.
"""

import json
import types

import jax
import pytest
from byte_lm_fixture import FOLDER

from experiments import accuracy, hf_generate, peers, run, scoring
from experiments.measure import Bench
from experiments.peers_summary import as_markdown, summarise
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.weights.safetensors import save_target

GREEDY, LOOKUP = hf_generate.GREEDY, hf_generate.LOOKUP


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A random Llama with a tokenizer, and a smaller one to draft for it."""
  path = tmp_path_factory.mktemp('llama')
  for name, layers in (('target', 2), ('assistant', 1)):
    config = tiny(
      family='llama',
      vocab=260,
      layers=layers,
      head_dim=8,
      qk_norm=False,
      eos_ids=(257,),
    )
    weights = transformer.init(config, jax.random.key(layers), scale=0.3)
    save_target(weights, path / name)
    (path / name / 'bytes.json').write_bytes(
      (FOLDER / 'target' / 'bytes.json').read_bytes()
    )
  return path


@pytest.fixture
def asked(monkeypatch, tmp_path, folder):
  """Sets flags by name."""
  prompts = tmp_path / 'set.jsonl'
  lines = [{'prompt': f'{i} and {i}?', 'answer': f'#### {i}'} for i in range(3)]
  prompts.write_text(''.join(json.dumps(line) + '\n' for line in lines))
  given = {'_TARGET': str(folder / 'target'), '_ASSISTANT': None}
  given |= {'_METHODS': ['ar', 'lookup:4'], '_DRAFTER': [], '_LOOKUP': 4}
  given |= {'_PROMPTS': str(prompts), '_LIMIT': 2, '_NEW': 8, '_SCORE': False}
  given['_OUT'] = str(tmp_path / 'runs' / 'rows.jsonl')

  def ask(**changes):
    for name, value in (given | changes).items():
      monkeypatch.setattr(peers, name, types.SimpleNamespace(value=value))

  ask.path = tmp_path / 'runs' / 'rows.jsonl'
  return ask


@pytest.fixture
def pretended(monkeypatch):
  """Peers that answer at once, the second one wrongly; their prompts, and those
  of ours, by call. Raises after `pretended.stop` calls."""

  class Calls(list):
    stop = None

    def add(self, label, at):
      if len(self) == self.stop:
        raise KeyboardInterrupt
      self.append((label, at))

  calls, decode = Calls(), Bench.decode

  def pretend(label, answer):
    def generate(ids):
      calls.add(label, ids[0] - ord('0'))
      return answer

    return generate

  def ours(self, label, part):
    calls.add(label, part.start)
    return decode(self, label, part)

  answers = {GREEDY: [5, 6, 7, 8], LOOKUP: [5, 6, 9]}
  monkeypatch.setattr(
    hf_generate,
    'generators',
    lambda *a, **k: {name: pretend(name, x) for name, x in answers.items()},
  )
  monkeypatch.setattr(hf_generate, 'versions', lambda: {'torch': '0'})
  monkeypatch.setattr(Bench, 'decode', ours)
  return calls


def test_all_take_turns_and_one_goes_first(asked, pretended):
  """Catches a timed warm-up, blocks of one generator, and a text that is
  compared with another one than the first's."""
  asked()
  rows = peers.peers()
  order = [row['label'] for row in run.read_rows(asked.path)]
  assert order == [
    *(GREEDY, LOOKUP, 'ar', 'lookup'),
    *(GREEDY, 'ar', 'lookup', LOOKUP),
  ]
  for label in order[:4]:  # a warm-up, then one of each prompt
    assert [at for name, at in pretended if name == label] == [0, 0, 1]
  assert [row['label'] for row in rows] == [x for x in order[:4] for _ in '12']
  looked = [row for row in rows if row['label'] == LOOKUP]
  assert [(row['equal'], row['differs_at']) for row in looked] == [
    (False, 2)
  ] * 2
  assert all(row['equal'] for row in rows if row['label'] == GREEDY)
  wanted = 'threads versions device cpus prompt_set max_new_tokens assistant'
  assert set(wanted.split()) <= set(rows[0])


def test_goes_on_cell_by_cell(asked, pretended):
  """Catches a cell that is decoded twice or never, and one of other settings
  that is taken for it."""
  asked()
  pretended.stop = 11  # each has warmed up; three cells of prompt 1 are there
  with pytest.raises(KeyboardInterrupt):
    peers.peers()
  before = run.read_rows(asked.path)
  assert len(before) == 7
  pretended.stop = None
  pretended.clear()
  rows = peers.peers()
  assert set(pretended) == {(LOOKUP, 1)}
  assert run.read_rows(asked.path)[:7] == before
  pretended.clear()
  assert run.dumps(peers.peers()) == run.dumps(rows) and not pretended
  asked(_LIMIT=3)
  assert len(peers.peers()) == 12 and (GREEDY, 1) not in pretended
  asked(_NEW=6)
  peers.peers()
  assert len(run.read_rows(asked.path)) == 20


def test_table(asked, pretended, monkeypatch):
  """Catches a ratio upside down, and totals that are no medians."""
  times = {GREEDY: (1.0, 4.0), LOOKUP: (0.5, 2.0), 'ar': (2.0, 8.0)}
  rows = [
    dict(label=label, prompt=i, seconds=s, tokens=4, tokens_per_s=4 / s)
    | dict(equal=label != LOOKUP, **({'rounds': 2} if label == 'ar' else {}))
    for label, seconds in times.items()
    for i, s in enumerate(seconds)
  ]
  head, _, *lines = as_markdown(summarise(rows)).splitlines()
  assert head.count('|') == 6 and 'right' not in head
  assert lines == [
    '| transformers greedy | 2.5 | 1 | - | 2/2 |',
    '| transformers prompt lookup | 5.0 | 2.00 [2.00, 2.00] | - | 0/2 |',
    '| ar | 1.2 | 0.50 [0.50, 0.50] | 1.50 | 2/2 |',
  ]

  monkeypatch.setattr(
    scoring, 'load', lambda *a, **k: lambda prompt, text: prompt == 1
  )
  asked(_SCORE=True)
  scored = as_markdown(summarise(peers.peers())).splitlines()
  assert scored[0].endswith('| equal | right |')
  assert all(line.endswith('/2 | 1/2 |') for line in scored[2:])
  # Of the rows as they are in the file, scored anew.
  compared = {
    c['label']: c for c in accuracy.compare(accuracy.read(asked.path))
  }
  assert (compared['lookup']['right'], compared['lookup']['equal']) == (1, 2)


@pytest.mark.parametrize(
  ('a', 'b', 'at'),
  [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1)],
)
def test_first_difference(a, b, at):
  assert peers.first_difference(a, b) == at


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'_METHODS': ['lokup']}, "'lokup' does not exist; choose one of"),
    ({'_METHODS': ['lookup:x']}, "'lookup:x'; give name or name:nodes"),
    ({'_DRAFTER': ['/some/folder']}, 'give METHOD=FOLDER'),
    ({'_DRAFTER': ['dflash=x']}, "drafters names 'dflash'"),
    ({'_PROMPTS': 'gsm8k'}, "prompts 'gsm8k' are neither"),
    ({'_NEW': 0}, 'max_new_tokens is 0'),
    ({'_LOOKUP': 0}, 'prompt_lookup is 0'),
    ({'_TARGET': '/no/where'}, 'there is no folder /no/where'),
    ({'_TARGET': 'tests/goldens/models/llama'}, 'has no tokenizer'),
    ({'_ASSISTANT': '/no/where'}, 'there is no folder /no/where'),
    ({'_ASSISTANT': 'tests/goldens/models/llama'}, 'has 96 tokens'),
  ],
)
def test_bad_input(asked, pretended, changes, message, monkeypatch):
  monkeypatch.chdir(run.ROOT)
  asked(**changes)
  with pytest.raises(ValueError, match=message):
    peers.peers()
  assert not pretended and not asked.path.exists()


def test_other_rows_are_left_alone(asked, pretended):
  asked.path.parent.mkdir()
  asked.path.write_text('{"prompt": "one"}\n')
  asked()
  with pytest.raises(ValueError, match='rows of another script'):
    peers.peers()
  assert asked.path.read_text() == '{"prompt": "one"}\n'


def test_without_the_extra(monkeypatch):
  def missing(name):
    raise hf_generate.importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(hf_generate.importlib.metadata, 'version', missing)
  with pytest.raises(ValueError, match=r'install specjax\[peers\]'):
    hf_generate.versions()


def test_with_transformers(asked, folder):
  """Catches ids that are not theirs, speculation that is not switched on, and
  a text that is longer than was asked for."""
  for library in ('torch', 'transformers'):
    pytest.importorskip(library, reason=f'the extra peers has {library}')
  asked(_ASSISTANT=str(folder / 'assistant'), _NEW=24)
  rows = peers.peers()
  labels = [GREEDY, LOOKUP, hf_generate.ASSISTED, 'ar', 'lookup']
  assert [row['label'] for row in rows[::2]] == labels
  assert all(row['equal'] and row['tokens'] <= 24 for row in rows)
  assert max(row['tokens'] for row in rows) == 24
  assert len(as_markdown(summarise(rows)).splitlines()) == 7
