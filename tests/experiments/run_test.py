"""Gin, run folders and JSON lines."""

import json
import pathlib
import subprocess
import sys

import pytest

from experiments import run

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = sorted((ROOT / 'experiments' / 'configs').rglob('*.gin'))


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_every_config_parses(path, monkeypatch, tmp_path):
  """Catches a config that names what is gone; from any working directory."""
  monkeypatch.chdir(tmp_path)
  run.parse([str(path.relative_to(ROOT))], [])
  assert path.read_text().startswith('# ')


@pytest.mark.parametrize(
  'param, named',
  [
    ('evaluate.evaluate.limt = 3', 'limt'),
    ('evaluate.evalute.limit = 3', 'evalute'),
    ('lookup.build.ngrams = 2', 'ngrams'),
    ('lokup.build.ngram = 2', 'lokup'),
    ('evaluate.evaluate.limit = three', 'three'),
  ],
)
def test_misspelt_names_are_named(param, named):
  """Catches a binding that is dropped, so that a run measures its default."""
  file = 'experiments/configs/methods/lookup.gin'
  with pytest.raises(ValueError, match=f'(?s)configuration is wrong.*{named}'):
    run.parse([file], [param])


def test_missing_config():
  with pytest.raises(ValueError, match='nosuch'):
    run.parse(['experiments/configs/nosuch.gin'], [])


def test_folder_is_never_reused_for_other_settings(tmp_path):
  """Catches rows of two runs in one file."""
  folder = tmp_path / 'run'
  file = 'experiments/configs/methods/lookup.gin'
  run.parse([file], [])
  name = run.default_dir([file])
  assert not run.open_folder(folder, {'seed': 0, 'methods': ('a',)})
  assert run.open_folder(folder, {'seed': 0, 'methods': ('a',)})
  record = (folder / run.RECORD).read_text()
  assert {'jax', 'jaxlib', 'flax', 'specjax', 'python'} <= set(
    json.loads(record)['versions']
  )
  with pytest.raises(ValueError, match='seed was 0 and is 1'):
    run.open_folder(folder, {'seed': 1, 'methods': ('a',)})
  assert (folder / run.RECORD).read_text() == record
  run.parse([file], ['evaluate.evaluate.seed = 1'])
  assert run.default_dir([file]) != name
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'thesis.tex').touch()
  with pytest.raises(ValueError, match='no run folder'):
    run.open_folder(tmp_path / 'other', {})


def test_scripts_can_be_imported_together():
  """In any order, since many name a flag alike: --target above all.

  One process reads all test files.
  """
  code = 'import importlib; [importlib.import_module(n) for n in {!r}]'
  names = [
    f'experiments.{path.stem}'
    for path in sorted((run.ROOT / 'experiments').glob('*.py'))
  ]
  done = subprocess.run(
    [sys.executable, '-c', code.format(names)],
    cwd=run.ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr


def test_what_differs_is_named_and_not_all_there_is(tmp_path):
  """Texts of methods are long, and many stand in one record."""
  text = 'x' * 300
  methods = lambda nodes: {'methods': {'a': text, 'b': text + nodes + text}}
  run.open_folder(tmp_path / 'x', methods('nodes=3'))
  with pytest.raises(ValueError, match=r'\(b was \.{3}x+nodes=3x+\.') as error:
    run.open_folder(tmp_path / 'x', methods('nodes=4'))
  assert 'nodes=4' in str(error.value) and len(str(error.value)) < 500


def test_rows_survive_a_kill_in_mid_write(tmp_path):
  """Catches half a line that joins the next one, and the word NaN."""
  path = tmp_path / 'rows.jsonl'
  assert run.read_rows(path) == []
  run.append_rows(path, [{'a': float('nan'), 'b': [1.5, float('nan')]}])
  with path.open('a') as file:
    file.write('{"a": "hal')
  rows = [{'a': None, 'b': [1.5, None]}]
  assert run.read_rows(path) == rows
  assert path.read_text().endswith('hal')  # a reader changes nothing
  run.append_rows(path, [{'a': 'é'}])
  assert [json.loads(x) for x in path.read_text().splitlines()] == [
    *rows,
    {'a': 'é'},
  ]
  run.write_rows(path, [{'a': 2}])
  assert run.read_rows(path) == [{'a': 2}]
  assert [p.name for p in tmp_path.iterdir()] == ['rows.jsonl']
  path.write_text('no row\n')
  with pytest.raises(ValueError, match='line 1 is not JSON'):
    run.read_rows(path)
