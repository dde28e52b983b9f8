"""Trainings side by side: rows that looked, and bytes that stay."""

import pytest

from experiments import logs, run
from experiments.figures import steps

pytest.importorskip('matplotlib')


@pytest.fixture
def runs(tmp_path):
  for name, more in (('one', 0.0), ('two', 0.5)):
    look = lambda step, more=more: dict(
      accepted=2 + more + step / 100, low=1.5, high=3.5
    )
    folder = tmp_path / name
    folder.mkdir()
    rows = [
      dict(step=step, loss=1.0) | (look(step) if step % 20 == 0 else {})
      for step in range(10, 50, 10)
    ]
    run.append_rows(folder / logs.ROWS, rows)
  return tmp_path


def test_looks_of_all_runs(runs):
  found = steps.points([f'SFT={runs}/one', f'Draft-OPD={runs}/two'])
  assert [(r['run'], r['step'], r['accepted']) for r in found] == [
    ('SFT', 20, 2.2),
    ('SFT', 40, 2.4),
    ('Draft-OPD', 20, 2.7),
    ('Draft-OPD', 40, 2.9),
  ]
  for folder in ('a', 'b'):
    steps.write(found, runs / folder)
  for kind in ('csv', 'pdf', 'png'):
    a, b = ((runs / x / f'steps.{kind}').read_bytes() for x in 'ab')
    assert a == b and a
  assert (runs / 'a/steps.csv').read_text().splitlines()[1] == (
    'SFT,20,2.200,1.500,3.500'
  )


def test_what_is_no_run(runs):
  with pytest.raises(ValueError, match='give NAME=RUN_DIR'):
    steps.points([f'{runs}/one'])
  (runs / 'blind').mkdir()
  run.append_rows(runs / 'blind' / logs.ROWS, [dict(step=1, loss=1.0)])
  with pytest.raises(ValueError, match='no figures of held-out'):
    steps.points([f'x={runs}/blind'])
