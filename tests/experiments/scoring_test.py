"""Which answers are right, with hand-made texts, and where it is counted."""

import json
import sys

import pytest

from experiments import evaluate, methods_table, paper_tables, scoring
from experiments.breakdown import PARTS
from experiments.measure import Bench
from experiments.summary import as_table

GSM8K = 'She makes 9 * 2 = $<<9*2=18>>18 a day.\n#### 18'
MATRIX = '\\begin{pmatrix} -7 \\\\ 16 \\\\ 5 \\end{pmatrix}'


@pytest.fixture
def scorer(tmp_path):
  """Of a set with these answers."""

  def make(*answers):
    path = tmp_path / 'set.jsonl'
    lines = [{'prompt': f'{i}?', 'answer': a} for i, a in enumerate(answers)]
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return scoring.load(str(path))

  return make


@pytest.mark.parametrize(
  ('answer', 'text', 'right'),
  [
    (GSM8K, 'So she makes $18 every day at the market.', True),
    (GSM8K, 'The answer is **18 dollars**.', True),
    (GSM8K, 'It is $9 \\times 2 = 18$ dollars.', True),
    (GSM8K, 'Thus $\\boxed{18}$. As a check, 20 - 2 is less than 19.', True),
    (GSM8K, 'The answer is 18.00', True),
    (GSM8K, '9 * 2 is 18.\n#### 18', True),
    # Read without its mark it is 4 and 33.333.
    ('4 + 2.\n#### 6', 'Fees of $4.00 + $2.00 = $6.00.\n#### 6', True),
    ('So 33.333.\n#### 33', 'It is 33.333...%, so 33%.\n#### 33', True),
    (GSM8K, '9 * 2 is 18.\n#### 19', False),
    (GSM8K, '#### 18\nQuestion: 3 + 4?\n#### 7', True),
    (GSM8K, '#### 1 First step\n9 * 2 = 18', True),
    (GSM8K, 'She has 18 eggs and so makes 36 dollars.', False),
    (GSM8K, 'She makes money.', False),
    (GSM8K, '', False),
    ('Many.\n#### 1,200', 'They are 1200.', True),
    ('Many.\n#### 1,200', 'They are 1,200.', True),
    ('Many.\n#### 1,200', 'They are 200.', False),
    ('Colder.\n#### -5', 'It is -5 degrees.', True),
    ('Colder.\n#### -5', 'It is 5 degrees.', False),
    (MATRIX, f'Hence $\\boxed{{{MATRIX}}}$.', True),
    (MATRIX, f'Hence $\\boxed{{{MATRIX.replace("16", "61")}}}$.', False),
    ('\\frac{3}{4}', 'The answer is $\\boxed{0.75}$.', True),
    ('\\frac{3}{4}', 'The answer is $\\frac{6}{8}$', True),
    ('\\frac{3}{4}', 'The answer is $\\boxed{\\frac{4}{3}}$.', False),
    ('\\text{Evelyn}', 'So it is \\boxed{\\text{Evelyn}}.', True),
    ('\\text{Evelyn}', 'So it is \\boxed{\\text{Angela}}.', False),
    ('x + 1 = 3, so $x = \\boxed{2}$.', 'x is 2', True),
    ('[2, 5)', 'For $x \\in \\boxed{[2,5)}$.', True),
    ('[2, 5)', 'For $x \\in \\boxed{[2,5]}$.', False),
  ],
)
def test_hand_made(scorer, answer, text, right):
  assert scorer(answer)(0, text) is right


def test_each_prompt_has_its_own(scorer):
  right = scorer('#### 1', '#### 2')
  assert [right(i, 'It is 2.') for i in range(2)] == [False, True]


def test_equal_texts_are_scored_once(scorer, monkeypatch):
  """Catches a text that counts for one method and, timed out, not for another;
  and one prompt's score taken for another's."""
  import math_verify

  right, verify = scorer('#### 1', '#### 2'), math_verify.verify
  texts = []
  monkeypatch.setattr(
    math_verify, 'verify', lambda a, b: texts.append(b) or verify(a, b)
  )
  assert [right(i, 'It is 2.') for i in (0, 1, 0, 1)] == [False, True] * 2
  assert len(texts) == 2


def test_said_before_anything_is_decoded(scorer, tmp_path, monkeypatch):
  with pytest.raises(ValueError, match=r'prompt 2 .* no number or formula'):
    scorer('#### 1', ' ')
  path = tmp_path / 'set.jsonl'
  path.write_text('{"prompt": "def f():"}\n')
  settings = {'run_dir': tmp_path / 'run', 'prompts': str(path), 'score': True}
  load_all = lambda *a: pytest.fail('loads first')
  monkeypatch.setattr(evaluate, 'load_all', load_all)
  with pytest.raises(ValueError, match="'answer'; leave score out"):
    evaluate.evaluate(**settings)
  monkeypatch.setitem(sys.modules, 'math_verify', None)
  with pytest.raises(ValueError, match=r'install specjax\[score\]'):
    evaluate.evaluate(**settings)
  assert not (tmp_path / 'run').exists()


def test_rows_and_tables(tmp_path, monkeypatch):
  """Catches a score that is lost on the way to a table, or of another prompt;
  who goes on with a run scores what is new."""
  settings = {
    'run_dir': tmp_path,
    'methods': ['lookup'],
    'limit': 3,
    'max_new_tokens': 4,
    'dtype': 'float32',
    'score': True,
  }
  monkeypatch.setattr(
    scoring,
    'load',
    lambda source, *, limit: lambda prompt, text: prompt > 0 and bool(text),
  )
  decode, calls = Bench.decode, []

  def interrupted(self, label, part):
    calls.append(part)
    if len(calls) == 7:  # the last prompt has begun
      raise KeyboardInterrupt
    return decode(self, label, part)

  monkeypatch.setattr(Bench, 'decode', interrupted)
  with pytest.raises(KeyboardInterrupt):
    evaluate.evaluate(**settings)
  summaries = evaluate.evaluate(**settings)
  rows = evaluate.run.read_rows(tmp_path / evaluate.METRICS)
  assert all(row['right'] == (row['prompt'] > 0) for row in rows)
  assert [(s['right'], s['prompts']) for s in summaries] == [(2, 3)] * 2
  table = as_table(summaries).splitlines()
  assert table[0].split()[-2:] == ['equal', 'right']
  assert table[2].split()[-2:] == ['3/3', '2/3']

  rows = [{'table': 'speedup', 'target': 'tiny', **s} for s in summaries]
  served = {'table': 'throughput', 'concurrency': 2, 'equal': 8, 'requests': 8}
  served |= {'over_plain': 1.0, 'over_plain_low': 1.0, 'over_plain_high': 1.0}
  served = {k: v for k, v in rows[1].items() if k != 'right'} | served
  lines = paper_tables.overview([*rows, {'table': 'split'}, served])
  assert [line[-2:] for line in lines] == [
    *(['equal', 'right'], ['3/3', '2/3'], ['3/3', '2/3'], ['8/8', '-'])
  ]

  shares = {f'{part}_share': 0.25 for part in PARTS}
  times = [{'label': s['label'], 'nodes': 1, **shares} for s in summaries]
  measured = {s['label']: s for s in summaries[:1]}
  body = methods_table.as_markdown(times, measured).splitlines()[2:]
  assert body[0].endswith('| 2/3 |') and body[1].endswith('| - |')
