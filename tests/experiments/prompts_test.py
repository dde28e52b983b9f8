"""Prompt sets."""

import pytest

from experiments.prompts import as_messages, read_prompts


def test_builtin_and_limit():
  assert len(read_prompts('gsm8k_test_20')) == 20
  first = read_prompts('gsm8k_test_20', limit=2)
  assert len(first) == 2
  assert first[0].startswith('Janet')
  assert as_messages('x') == [{'role': 'user', 'content': 'x'}]


@pytest.mark.parametrize(
  'line',
  ['{"prompt": "cut', '{"question": "x"}', '{"prompt": ""}', '["x"]', ''],
)
def test_wrong_lines_are_named(tmp_path, line):
  """Catches a line that is skipped in silence: the set would shrink."""
  path = tmp_path / 'set.jsonl'
  path.write_text(f'{{"prompt": "good"}}\n{line}\n{{"prompt": "good"}}\n')
  with pytest.raises(ValueError, match=r'set\.jsonl, line 2 '):
    read_prompts(str(path))
  assert read_prompts(str(path), limit=1) == ['good']


def test_wrong_sources(tmp_path):
  with pytest.raises(ValueError, match=r'neither a file nor .*gsm8k_test_20'):
    read_prompts('gsm8k_test_2')
  (tmp_path / 'empty.jsonl').touch()
  with pytest.raises(ValueError, match='holds no line'):
    read_prompts(str(tmp_path / 'empty.jsonl'))
  with pytest.raises(ValueError, match='limit is 0'):
    read_prompts('gsm8k_test_20', limit=0)
