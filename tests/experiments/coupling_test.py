"""What experiments.coupling refuses, and what it measures anew."""

import types

import pytest

from experiments import coupling, run


@pytest.fixture
def asked(monkeypatch, tmp_path):
  """Sets flags by name."""
  given = {'_METHODS': ['dflash:4'], '_LAWS': ['1:1'], '_SHARPNESS': ['1']}
  given |= {'_PROMPTS': 'gsm8k_test_20', '_LIMIT': 1, '_DRAFTER': None}
  given |= {'_TARGET': 'default', '_NEW': 4, '_BATCH': 1}
  given['_OUT'] = str(tmp_path / 'rows.jsonl')

  def ask(**changes):
    for name, value in (given | changes).items():
      monkeypatch.setattr(coupling, name, types.SimpleNamespace(value=value))

  return ask


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'_METHODS': ['dflash:4', 'ddtree:abc']}, 'ddtree:abc.*name:nodes:rule'),
    ({'_METHODS': ['dflash:4:follow:x']}, 'name:nodes:rule'),
    ({'_METHODS': ['nope']}, 'choose one of'),
    ({'_LAWS': ['1:1.5']}, 'top_p 1.5; it is at most 1'),
    ({'_LAWS': ['-1:1']}, 'numbers above 0'),
  ],
)
def test_said_before_anything_is_measured(asked, changes, message, monkeypatch):
  asked(**changes)
  monkeypatch.setattr(coupling, '_load', lambda name: pytest.fail('measures'))
  with pytest.raises(ValueError, match=message):
    coupling.coupling()


def test_other_rows_are_left_alone(asked, tmp_path):
  path = tmp_path / 'rows.jsonl'
  path.write_text('{"prompt": "one"}\n{"prompt": "two"}')
  asked()
  with pytest.raises(ValueError, match='rows of another script'):
    coupling.coupling()
  assert path.read_text().endswith('{"prompt": "two"}')


def test_a_cell_is_of_its_prompts(asked, tmp_path):
  """The same file name with other prompts is measured anew; a cell that is
  there is not."""
  prompts = tmp_path / 'set.jsonl'
  asked(_PROMPTS=str(prompts), _LAWS=[])
  sizes = []
  for text in ('one', 'two', 'two'):
    prompts.write_text(f'{{"prompt": "{text}"}}\n')
    coupling.coupling()
    sizes.append(len(run.read_rows(tmp_path / 'rows.jsonl')))
  assert sizes == [1, 2, 2]
