"""`evaluate` with the packaged model: rows, resuming, the command line."""

import json
import pathlib
import subprocess
import sys

import pytest

from experiments import evaluate, generate, lineup, run
from experiments.measure import Bench
from specjax.methods import lookup

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {
  'methods': ['lookup'],
  'limit': 3,
  'max_new_tokens': 12,
  'dtype': 'float32',
}


def strict_rows(path):
  """JSON lines as any reader takes them: the word NaN is refused."""
  return [
    json.loads(line, parse_constant=lambda x: pytest.fail(f'{x} in {path}'))
    for line in path.read_text().splitlines()
  ]


@pytest.fixture
def decoded(monkeypatch):
  """The (label, first prompt) of every call; raises after `decoded.stop`."""

  class Calls(list):
    stop = None

  calls, decode = Calls(), Bench.decode

  def counted(self, label, part):
    if len(calls) == calls.stop:
      raise KeyboardInterrupt
    calls.append((label, part.start))
    return decode(self, label, part)

  monkeypatch.setattr(Bench, 'decode', counted)
  return calls


def test_resumes_where_it_was_interrupted(tmp_path, decoded):
  """Catches a cell that is decoded twice or never, and a spoilt file."""
  decoded.stop = 7  # the last prompt has begun
  with pytest.raises(KeyboardInterrupt):
    evaluate.evaluate(run_dir=tmp_path, **SETTINGS)
  path = tmp_path / evaluate.METRICS
  before = strict_rows(path)
  assert 2 <= len(before) <= 4 and len(before) % 2 == 0
  finished = {(row['label'], row['prompt']) for row in before}

  decoded.stop = None
  decoded.clear()
  summaries = evaluate.evaluate(run_dir=tmp_path, **SETTINGS)
  assert not finished & set(decoded)
  rows = strict_rows(path)
  assert rows[: len(before)] == before
  cells = [(row['label'], row['prompt']) for row in rows]
  assert sorted(cells) == [(m, i) for m in ('ar', 'lookup') for i in range(3)]

  decoded.clear()
  again = evaluate.evaluate(run_dir=tmp_path, **SETTINGS)
  assert not decoded
  # What was not measured is nan, which equals nothing, itself included.
  assert run.dumps(again) == run.dumps(summaries)
  plain, other = strict_rows(tmp_path / evaluate.SUMMARY)
  assert (plain['label'], plain['mean_accepted'], plain['speed_up']) == (
    *('ar', 1, 1),
  )
  assert other['texts_equal'] == other['prompts'] == 3
  assert other['mean_accepted'] >= 1 and other['tokens'] == 36
  wanted = 'device versions dtype nodes temperature top_p batch prompt_set seed'
  assert set(wanted.split()) | {'thinking', 'platform'} <= set(other)

  with pytest.raises(ValueError, match='max_new_tokens was 12 and is 13'):
    evaluate.evaluate(run_dir=tmp_path, **{**SETTINGS, 'max_new_tokens': 13})
  assert strict_rows(path) == rows


def test_batches_decode_the_same_texts(tmp_path):
  """Catches rows that are mixed up within a batch, sampled texts included;
  two variants of one method keep apart."""

  def texts(name, **changes):
    settings = {**SETTINGS, 'temperature': 0.8, 'limit': 2, **changes}
    evaluate.evaluate(run_dir=tmp_path / name, **settings)
    rows = strict_rows(tmp_path / name / evaluate.METRICS)
    assert all(row['equal'] for row in rows)
    return {(row['label'], row['prompt']): row['text'] for row in rows}

  def short(target_config=None, drafter_config=None):
    return lookup.build(nodes=4)

  short.__module__ = lookup.__name__
  alone = texts('alone', methods=[])
  together = texts('together', batch=2, methods=[lookup.build, short])
  assert {label for label, _ in together} == {'ar', 'lookup-8', 'lookup-4'}
  assert len(set(alone.values())) == 2
  for (_, prompt), text in together.items():
    assert text == alone['ar', prompt]


def test_wrong_settings_cost_no_time(tmp_path, monkeypatch):
  """Catches a check that comes after the weights are read."""
  monkeypatch.setattr(
    lineup.api, 'load', lambda *a, **k: pytest.fail('loads first')
  )
  for changes, message in (
    ({'methods': ['lokup']}, "methods names 'lokup'"),
    ({'drafters': {'eagle': 'x'}}, "drafters names 'eagle'"),
    ({'prompts': 'gsm8k'}, "prompts 'gsm8k' are neither"),
    ({'batch': 0}, 'batch is 0'),
  ):
    with pytest.raises(ValueError, match=message):
      evaluate.evaluate(run_dir=tmp_path / 'x', **{**SETTINGS, **changes})
  assert not (tmp_path / 'x').exists()


def test_command_line(tmp_path):
  """Catches bindings that do not reach the function, and a traceback."""

  def call(*params):
    return subprocess.run(
      [
        *(sys.executable, '-m', 'experiments.evaluate'),
        '--gin_file=experiments/configs/methods/lookup.gin',
        *(f'--gin_param=evaluate.evaluate.{param}' for param in params),
        f'--run_dir={tmp_path / "run"}',
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
    )

  wrong = call('limt = 2')
  # Behind what jax may log where it finds no accelerator.
  assert wrong.returncode == 1 and 'error: ' in wrong.stderr
  assert "'limt'" in wrong.stderr and 'Traceback' not in wrong.stderr
  good = call('limit = 3', 'max_new_tokens = 12')
  assert good.returncode == 0, good.stderr
  assert [line.split()[0] for line in good.stdout.splitlines()[:3]] == [
    *('method', 'ar', 'lookup')
  ]
  assert '3/3' in good.stdout
  config = (tmp_path / 'run' / run.CONFIG).read_text()
  assert 'lookup.build.ngram = 3' in config
  assert 'evaluate.evaluate.max_new_tokens = 12' in config


def test_generate_prints_texts(capsys):
  """Catches a flag that does not reach the decoder."""

  generate._FLAGS(
    [
      *('generate', '--method=lookup', '--nodes=4', '--max_new_tokens=5'),
      *('--prompt=Why?', '--prompt=How?'),
    ]
  )
  generate.generate()
  out = capsys.readouterr().out
  assert out.count('--- answer, ended by') == 2 and 'Why?' in out
  assert 'lookup, 4 nodes, float32: 10 tokens' in out
