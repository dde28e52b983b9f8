"""Figures: every published row is there, bytes repeat, captions tell whose."""

import collections
import csv
import pathlib
import re
import subprocess
import sys

import pytest

from experiments import run, tables
from experiments.breakdown import PARTS
from experiments.figures import drawing, gallery, marks, prediction
from experiments.roofline_presets import DEVICES, device_named
from experiments.roofline_published import DATA

ROOT = pathlib.Path(__file__).parents[2]
PLOTS = {plot.name: plot for plot in gallery.PLOTS}
SHIPPED = ROOT / 'docs' / 'results'
# The figure of each published table and where its columns went.
TABLES = {
  'math500_speedup': (
    'speedup',
    {
      **dict(method='method', target='target', temperature='temperature'),
      **dict(speedup='speed_up', acceptance_length='accepted'),
    },
  ),
  'math500_throughput': (
    'throughput',
    {
      **dict(method='method', target='target', concurrency='concurrency'),
      **dict(throughput_tok_s='tokens_per_s', acceptance_length='accepted'),
    },
  ),
  'med_throughput': (
    'vocabulary',
    {
      **dict(method='method', dynamic_buffer='buffer'),
      'throughput_tok_s': 'tokens_per_s',
    },
  ),
}


def device(**changes):
  return {
    **dict(platform='cpu', device='cpu', devices=1, cpus=2),
    **dict(system='Linux x86_64', dtype='float32', target='default'),
    **dict(thinking=False, batch=1, method='ddtree', nodes=17),
    'called': None,
    **changes,
  }


def measured():
  """A row or two of ours for every figure."""
  told = dict(
    prompts=3,
    texts_equal=3,
    rounds=40,
    mean_accepted=3.0,
    mean_accepted_low=2.5,
    mean_accepted_high=3.5,
    speed_up=1.5,
    speed_up_low=1.25,
    speed_up_high=1.75,
    acceptance_by_depth=[0.9, 0.6, 0.5],
    tokens_per_s=300.0,
    temperature=0.0,
  )
  plain = dict(method='ar', label='ar', nodes=1, acceptance_by_depth=[])
  shares = {f'{part}_share': 0.2 for part in PARTS}
  served = dict(
    concurrency=4,
    low=250.0,
    high=350.0,
    over_plain=1.2,
    over_plain_low=1.1,
    over_plain_high=1.3,
    latency_p50_s=0.5,
    latency_p95_s=0.9,
    first_p50_s=0.1,
    first_p95_s=0.2,
    requests=16,
    equal=16,
  )
  cut = dict(table='vocabulary', method='draft_model', label='x')
  tree = dict(label='ddtree-17')
  split = dict(table='split', rest_share=-0.1, **shares)
  return [
    device(table='speedup', **told) | plain,
    device(table='speedup', **told) | tree,
    device(round_ms=4.0, **split) | plain,
    device(round_ms=8.0, **split) | tree,
    device(table='throughput', **told, **served) | tree,
    device(**told) | cut | dict(list=16, buffer=8),
    device(**told) | cut | dict(list=16, buffer=None),
    device(**told) | cut | dict(list=None, buffer=None),
  ]


@pytest.mark.parametrize('table', TABLES)
def test_every_published_row_is_in_a_figure_s_table(table):
  """Catches a row that is lost, there twice, or with another one's figures."""
  name, columns = TABLES[table]
  with (DATA / f'{table}.csv').open(newline='') as file:
    want = list(csv.DictReader(file))
  with (SHIPPED / f'{name}.csv').open(newline='') as file:
    have = [r for r in csv.DictReader(file) if r['source'] == 'published']
  assert len(want) == len(have)
  number = lambda text: text.replace('.', '').isdigit()
  for theirs, ours in zip(want, have, strict=True):
    for key, column in columns.items():
      value = theirs[key] or ('not given' if key == 'target' else '')
      if number(value):
        assert float(value) == float(ours[column]), (theirs, ours)
      else:
        assert value == ours[column], (theirs, ours)
  lines = (SHIPPED / f'{name}.tex').read_text().splitlines()
  assert sum(line.startswith('published & ') for line in lines) == len(want)
  assert 'published & ' not in (SHIPPED / f'{name}.csv').read_text()


def test_all_of_them():
  """104 rows, and the figure of predictions has each of them too."""
  count = {
    name: (SHIPPED / f'{name}.csv').read_text().count('\npublished,')
    for name in PLOTS
    if (SHIPPED / f'{name}.csv').exists()
  }
  drawn = sum(count[name] for name, _ in TABLES.values())
  assert drawn == count['prediction'] == 104


def rows_in_the_repository():
  folder = ROOT / 'experiments' / 'data' / 'results'
  return marks.read_rows(folder) if any(folder.glob('*.jsonl')) else []


def test_the_page_is_what_the_rows_give(tmp_path, monkeypatch):
  """Catches a page that went stale, and bytes that depend on the machine."""
  pytest.importorskip('matplotlib')
  monkeypatch.setattr(drawing, 'KINDS', ())  # pictures vary with libraries
  monkeypatch.setattr(drawing, 'drawn', lambda *a: None)
  gallery.gallery(rows_in_the_repository(), tmp_path)
  texts = [p for p in tmp_path.rglob('*') if p.is_file()]
  assert {p.suffix for p in texts} == {'.md', '.csv', '.tex'}
  for path in texts:
    shipped = ROOT / 'docs' / path.relative_to(tmp_path)
    assert path.read_bytes() == shipped.read_bytes(), shipped
  pictures = {p.name for p in SHIPPED.iterdir()} - {p.name for p in texts}
  stems = {p.stem for p in texts if p.suffix == '.csv'}
  assert pictures == {f'{s}.{k}' for s in stems for k in ('pdf', 'png')}


def filled(figure):
  """(hollow, filled) marks of all lines in a figure's panels."""
  count = collections.Counter()
  for axes in figure.axes:
    for line in axes.lines:
      if line.get_marker() != 'None':
        hollow = line.get_markerfacecolor() == 'none'
        count[hollow] += len(line.get_xdata())
  return count[True], count[False]


@pytest.mark.parametrize(
  'name, hollow, full',
  [
    *(('speedup', 52, 1), ('throughput', 30, 1), ('prediction', 82, 1)),
    *(('vocabulary', 20, 2), ('depth', 0, 3)),
  ],
)
def test_published_marks_are_hollow_and_ours_are_full(name, hollow, full):
  """Catches a mark that is not drawn and one drawn as somebody else's; two
  published rows and one of ours are lines across, 22 have no prediction."""
  pytest.importorskip('matplotlib')
  plot = PLOTS[name]
  found = plot.marks(measured())
  assert filled(drawing.drawn(plot, found)) == (hollow, full)
  caption = plot.caption(found)
  assert 'packaged byte model on 2 CPU cores, Linux x86_64' in caption
  assert ('arXiv:' in caption) == bool(hollow)


def test_the_caption_tells_where_a_method_stops_paying_off():
  plot = PLOTS['throughput']
  caption = plot.caption(plot.marks(measured()))
  assert caption.endswith(
    'packaged byte model on 2 CPU cores, Linux x86_64: DDTree, rows: 17: pays '
    'off up to 4, the largest measured (over plain decoding, with the range of '
    'turns: 1.20 [1.10, 1.30] at 4).'
  )


def test_lines_across_are_there():
  pytest.importorskip('matplotlib')
  plot = PLOTS['vocabulary']
  figure = drawing.drawn(plot, plot.marks(measured()))
  across = [x for a in figure.axes for x in a.lines if x.get_marker() == 'None']
  assert [x.get_ydata()[0] for x in across] == [111.93, 98.58, 300.0]


def test_files_are_the_same_twice(tmp_path):
  """All four formats; a date or an id would differ."""
  pytest.importorskip('matplotlib')
  plot = PLOTS['split']
  found = plot.marks(measured())
  for name in ('a', 'b'):
    drawing.write(plot, found, tmp_path / name)
  first = sorted((tmp_path / 'a').iterdir())
  assert [p.suffix for p in first] == ['.csv', '.pdf', '.png', '.tex']
  for path in first:
    assert path.read_bytes() == (tmp_path / 'b' / path.name).read_bytes()


def test_predictions_of_our_rows():
  """Catches a laptop's row priced as an accelerator's, and the wrong ratio."""
  found = prediction.marks_of(measured())[104:]
  tree, served = found
  assert tree['prediction'] == pytest.approx(3.0 * 4 / 8)
  assert tree['left'] == pytest.approx(0) and 'round' in tree['note']
  assert served['prediction'] is None and served['note'].startswith('left out')
  chip = dict(device='NVIDIA H200', platform='gpu', target='Qwen3-8B')
  rows = [row | chip for row in measured()]
  tree, served = prediction.marks_of(rows)[104:]
  assert tree['note'] == served['note'] == 'roofline'
  assert 2 < tree['prediction'] < 3 and served['prediction'] > 500
  rows[1] |= dict(mean_accepted=30.0, method='dflash')
  rows = [row for row in rows if row['table'] != 'split']
  tree = prediction.marks_of(rows)[104]
  assert tree['note'].startswith('left out: accepted is 30')


@pytest.mark.parametrize(
  'kind, preset',
  [
    *(('NVIDIA H200', 'h200'), ('NVIDIA GH200 480GB', 'gh200')),
    *(('NVIDIA A100-SXM4-80GB', 'a100'), ('NVIDIA A40', 'a40')),
    *(('NVIDIA RTX A4000', None), ('NVIDIA H100 PCIe', None), ('cpu', None)),
    ('NVIDIA H100 NVL', None),
  ],
)
def test_devices_of_presets(kind, preset):
  assert device_named(kind) is DEVICES.get(preset)


def test_tex_is_escaped():
  text = tables.as_tex(
    {'a': 'x & y', 'b': 'n'},
    [{'a': r'50% of a_b \ c', 'b': 1.005}, {'b': float('nan')}],
    caption='a < b',
    label='tab:x',
  )
  assert (
    r'x \& y & n \\' in text and r'50\% of a\_b \textbackslash{} c &' in text
  )
  assert '\n &  \\\\\n' in text and 'a $<$ b' in text
  assert len(re.findall(r'(?<!\\)&', text)) == 4


def test_command_line(tmp_path):
  """A run's folder in, four files out."""
  pytest.importorskip('matplotlib')
  rows = [r for r in measured() if r['table'] == 'split']
  run.append_rows(tmp_path / 'rows.jsonl', rows)
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.figures.split', str(tmp_path)),
      f'--out={tmp_path / "out"}',
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert 'packaged byte model on 2 CPU cores' in done.stdout
  assert len(list((tmp_path / 'out').iterdir())) == 4


@pytest.mark.parametrize(
  'rows, message',
  [
    ([], 'holds no rows for figures'),
    (measured()[:2], 'no rows of split; it has speedup'),
  ],
)
def test_a_folder_without_rows(rows, message, tmp_path):
  run.append_rows(tmp_path / 'rows.jsonl', rows)
  with pytest.raises(SystemExit, match=message):
    drawing.command(PLOTS['split'])(['split', str(tmp_path)])
