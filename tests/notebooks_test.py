"""Every notebook's source runs from top to bottom."""

import pathlib
import runpy

import pytest

NOTEBOOKS = pathlib.Path(__file__).parents[1] / 'notebooks'


@pytest.mark.parametrize(
  'path', sorted(NOTEBOOKS.glob('*.py')), ids=lambda p: p.stem
)
def test_runs(path, capsys):
  runpy.run_path(str(path))
  assert '* ' in capsys.readouterr().out  # an accepted path was drawn
