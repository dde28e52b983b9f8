"""Notebooks run from top to bottom, and both of their files say the same."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = sorted((ROOT / 'notebooks').glob('*.py'))
UPDATE = 'jupytext --to ipynb --update notebooks/*.py'

each = pytest.mark.parametrize('path', SOURCES, ids=lambda p: p.stem)


def cells(notebook):
  return [(cell.cell_type, cell.source) for cell in notebook.cells]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """An empty working folder; a new process finds the package all the same."""
  paths = [str(ROOT), os.environ.get('PYTHONPATH')]
  monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, paths)))
  return tmp_path


def pictures(path, folder):
  """Runs a notebook in a kernel: how many pictures stand in it."""
  import jupytext
  from nbclient import NotebookClient

  notebook = jupytext.read(path)
  NotebookClient(
    notebook, timeout=600, resources={'metadata': {'path': str(folder)}}
  ).execute()
  return sum(
    'image/png' in output.get('data', {})
    for cell in notebook.cells
    for output in cell.get('outputs', ())
  )


@pytest.mark.slow
@each
def test_runs(path, elsewhere, monkeypatch):
  """Catches a notebook that fails anywhere but in its own folder, and a figure
  that is drawn and not shown."""
  needs = ('jupytext', 'nbclient', 'ipykernel')
  if all(map(importlib.util.find_spec, needs)):
    assert pictures(path, elsewhere) == path.read_text().count('plt.show()')
    return
  monkeypatch.setenv('MPLBACKEND', 'agg')
  subprocess.run([sys.executable, path], cwd=elsewhere, check=True)


@each
def test_pair_is_in_step(path):
  """Catches an edit of one file alone, and outputs that were committed."""
  jupytext = pytest.importorskip('jupytext')
  paired = jupytext.read(path.with_suffix('.ipynb'))
  assert cells(paired) == cells(jupytext.read(path)), UPDATE
  assert not any(cell.get('outputs') for cell in paired.cells)


def test_every_notebook_has_a_source():
  """Catches a notebook that no test runs."""
  have = {p.stem for p in (ROOT / 'notebooks').glob('*.ipynb')}
  assert have == {p.stem for p in SOURCES}


@each
def test_head_and_links(path):
  """Catches a badge that opens another notebook, a link to nowhere, and an
  install cell that was changed in one notebook only."""
  text, first = path.read_text(), SOURCES[0].read_text()
  assert f'/specjax/blob/main/notebooks/{path.stem}.ipynb\n' in text
  install = lambda source: source.split('# %%\n')[1]
  assert 'find_spec' in install(first)
  assert install(text) == install(first)
  for link in re.findall(r'\]\(([^):]+)\)', text):
    assert (path.parent / link).exists(), link
