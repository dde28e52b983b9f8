"""Whether quality is unchanged, from rows that are written by hand."""

import json

import pytest

from experiments import accuracy, run
from experiments.evaluate import METRICS


@pytest.fixture
def write(tmp_path):
  """A run folder: three prompts with the answers 1, 2, 3, texts by method."""
  prompts = tmp_path / 'set.jsonl'
  lines = [{'prompt': f'{i}?', 'answer': f'#### {i}'} for i in (1, 2, 3)]
  prompts.write_text(''.join(json.dumps(line) + '\n' for line in lines))

  def fill(**texts):
    rows = [
      {'label': label, 'prompt': i, 'prompt_set': str(prompts)}
      | {'text': text, 'ids': list(text.encode())}
      for label, group in texts.items()
      for i, text in enumerate(group)
    ]
    run.write_rows(tmp_path / METRICS, rows)
    return tmp_path

  return fill


def test_counts_by_prompt(write):
  """Catches sums that hide a lost answer behind a won one."""
  plain = ('It is 1.', 'It is 2.', 'It is 4.')
  folder = write(
    ar=plain, same=plain, other=('It is 1.', 'It is 5.', 'It is 3.')
  )
  table = accuracy.as_markdown(accuracy.compare(accuracy.read(folder)))
  assert table.splitlines()[2:] == [
    '| ar | 2/3 (66.7%) | 0 | 0 | 3/3 |',
    '| same | 2/3 (66.7%) | 0 | 0 | 3/3 |',
    '| other | 2/3 (66.7%) | 1 | 1 | 1/3 |',
    *('', 'Changed by other (2 answers, 2 texts).'),
  ]
  folder = write(ar=plain, same=plain)
  table = accuracy.as_markdown(accuracy.compare(accuracy.read(folder)))
  assert table.endswith('Unchanged by every method: all texts are those of ar.')


def test_what_was_scored_is_not_scored_again(write):
  folder = write(ar=('It is 1.',))
  rows = run.read_rows(folder / METRICS)
  rows = [row | {'right': False, 'prompt_set': 'gone'} for row in rows]
  run.write_rows(folder / 'other.jsonl', rows)
  (found,) = accuracy.compare(accuracy.read(folder / 'other.jsonl'))
  assert found['right'] == 0


def test_a_folder_in_and_a_table_out(write, capsys):
  folder = str(write(ar=('It is 1.',), lookup=('It is 1.',)))
  accuracy.main(['accuracy', folder])
  assert '| lookup | 1/1 (100.0%) | 0 | 0 | 1/1 |' in capsys.readouterr().out
  with pytest.raises(
    SystemExit, match=r'error: .*nowhere.* no rows per prompt'
  ):
    accuracy.main(['accuracy', 'nowhere'])


@pytest.mark.parametrize(
  ('texts', 'change', 'message'),
  [
    ({'lookup': ['1']}, lambda rows: rows, "of 'lookup' than of 'ar'"),
    ({'ar': '12', 'lookup': '1'}, lambda rows: rows, 'let the run end'),
    ({'ar': '1'}, lambda rows: rows * 2, 'rows of several runs'),
    ({'ar': '1'}, lambda rows: [{'prompt': 1}], 'no rows per prompt'),
    (
      {'ar': '1'},
      lambda rows: [*rows, rows[0] | {'prompt_set': 'b'}],
      'several prompt sets',
    ),
  ],
)
def test_rows_that_cannot_be_compared(write, texts, change, message):
  path = write(**texts) / METRICS
  run.write_rows(path, change(run.read_rows(path)))
  with pytest.raises(ValueError, match=message):
    accuracy.read(path)
