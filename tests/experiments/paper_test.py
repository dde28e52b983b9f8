"""One command per published table: cells, rows for figures, going on."""

import csv
import types

import gin
import pytest

from experiments import (
  breakdown,
  concurrency,
  evaluate,
  lineup,
  paper,
  paper_study,
  paper_tables,
  run,
)
from experiments.figures import depth, prediction, speedup, split
from experiments.figures import throughput as throughput_figure
from experiments.figures import vocabulary as vocabulary_figure
from experiments.measure import Bench
from experiments.roofline_published import DATA
from experiments.serving_load import Load
from specjax.generation import Generation, Stats
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec

FOLDER = 'experiments/configs/paper'
SMALL = (
  *('chat = False', 'max_new_tokens = 5', 'limit = 2', 'stop_at_end = False'),
  'repeats = 1',
)


class Pretender:
  """A decoder that gives every prompt the same five tokens."""

  def __init__(self, name, nodes):
    self.method = types.SimpleNamespace(
      name=name, path_rows=4, verify=types.SimpleNamespace(lossless=True)
    )
    self.nodes, self.dtype = nodes, 'float32'
    self.config = types.SimpleNamespace(vocab=16, max_length=64)
    self.walk = [1] * 4 if name == 'ar' else [2, 2]

  def encode(self, prompt, *, thinking=False):
    return list(prompt)

  def generate(self, prompts, **settings):
    zeros = {name: 0 for name in Stats.__dataclass_fields__}
    return Generation(
      tokens=[[7] * 5 for _ in prompts],
      text=None,
      accepted=[self.walk for _ in prompts],
      finish_reason=['length' for _ in prompts],
      logprobs=None,
      prompt_tokens=[len(p) for p in prompts],
      stats=Stats(**zeros | {'decode_s': 0.5 * len(self.walk)}),
    )


@pytest.fixture(autouse=True)
def pretended(monkeypatch):
  """Scripts that load and time nothing; what they measure has its own tests."""

  def load_all(methods, target, drafters, dtype, mesh=None):
    decoders = {'ar': Pretender('ar', 1)}
    for v in methods:
      nodes = v.method.keywords['nodes']
      decoders[v.label] = Pretender(lineup._name(v.method), nodes)
    return decoders

  def serve(load, decoder):
    times, count = [1.0] * load.count, load.count
    return dict(
      seconds=float(len(decoder.walk)),
      latency_s=times,
      first_s=times,
      tokens=[5] * count,
      walks=[decoder.walk] * count,
      digests=['x'] * count,
      ids=[],
    )

  prompts = [[1, 2], [3, 4]]
  for module in (evaluate, breakdown, concurrency):
    monkeypatch.setattr(module, 'load_all', load_all)
    monkeypatch.setattr(
      module, 'read_prompts', lambda _, *, limit: prompts[:limit]
    )
  monkeypatch.setattr(breakdown, '_state', lambda *a: None)
  ms = dict(round=4.0, drafted=1.5, tree=0.5, verify=2.0, commit=0.5)
  monkeypatch.setattr(breakdown, '_times', lambda *a: breakdown.shares(ms))
  monkeypatch.setattr(
    breakdown,
    '_facts',
    lambda d, _: dict(method=d.method.name, nodes=d.nodes, dtype=d.dtype),
  )
  monkeypatch.setattr(Load, 'warm_up', lambda *a: None)
  monkeypatch.setattr(Load, 'serve', serve)


def measure(name, folder, *params):
  """The rows of a configuration with few tokens; `params` win."""
  script = 'evaluate.evaluate'
  if name == 'math500_throughput':
    script = 'concurrency.concurrency'
  bound = [f'{script}.{param}' for param in SMALL]
  run.parse([f'{FOLDER}/{name}.gin'], [*bound, *params])
  return gin.get_configurable(paper.paper)(run_dir=folder)


SPEED_UP = (
  "paper_tables.SpeedUp.budgets = {'lookup': [8]}",
  *('breakdown.breakdown.begun = 1', 'breakdown.breakdown.chat = False'),
  'breakdown.breakdown.max_new_tokens = 5',
)


def test_speed_up(tmp_path, monkeypatch):
  """Catches a cell that is not measured, one measured twice, rows that lack
  what figures need, and a record that says too little."""
  rows = measure('math500_speedup', tmp_path / 'run', *SPEED_UP)
  cells = [(r['table'], r['label'], r.get('temperature')) for r in rows]
  assert cells == [
    *(('speedup', 'ar', 0.0), ('speedup', 'lookup-8', 0.0)),
    *(('speedup', 'ar', 1.0), ('speedup', 'lookup-8', 1.0)),
    *(('split', 'ar', 0.0), ('split', 'lookup-8', 0.0)),
  ]
  kept = run.read_rows(tmp_path / 'run' / paper.ROWS)
  assert run.dumps(kept) == run.dumps(rows)
  assert not {'drafters', 'prompt_set'} & set(rows[0])
  assert {'device', 'versions', 'seed', 'thinking'} <= set(rows[0])
  folders = {p.name for p in (tmp_path / 'run').iterdir() if p.is_dir()}
  assert folders == {'default-T0', 'default-T1', 'default-split'}

  drawn = {
    plot.name: [m for m in plot.marks(rows) if m['source'] == 'measured']
    for plot in (p.FIGURE for p in (speedup, depth, split, prediction))
  }
  sizes = {name: len(found) for name, found in drawn.items()}
  # Pretenders have a depth of 3, plain decoding too.
  assert sizes == dict(speedup=2, depth=12, split=2, prediction=2)
  assert [m['speed_up'] for m in drawn['speedup']] == [2, 2]
  assert all(m['prediction'] == 2 for m in drawn['prediction'])
  assert 'x_ar' in paper.told(rows) and rows[0]['device'] in paper.told(rows)
  line = paper_tables.overview(rows)[2]
  assert line[1:4] == ['one at a time', 'lookup-8', '0']

  monkeypatch.setattr(Bench, 'decode', lambda *a: pytest.fail('again'))
  monkeypatch.setattr(breakdown, '_times', lambda *a: pytest.fail('again'))
  again = measure('math500_speedup', tmp_path / 'run', *SPEED_UP)
  assert run.dumps(again) == run.dumps(rows)
  kept = (tmp_path / 'run' / paper.ROWS).read_bytes()
  with pytest.raises(ValueError, match=r'was .*and is \[0.0\]'):
    measure(
      'math500_speedup',
      tmp_path / 'run',
      *SPEED_UP,
      'paper_tables.SpeedUp.temperatures = [0.0]',
    )
  assert (tmp_path / 'run' / paper.ROWS).read_bytes() == kept


def test_throughput(tmp_path):
  """Catches a second drafter of a method that takes the first one's name."""
  rows = measure(
    'math500_throughput',
    tmp_path,
    "paper_tables.Throughput.budgets = {'lookup': [8], 'lookup:Other': [8]}",
    'paper_tables.Throughput.concurrencies = [2]',
  )
  assert [(r['table'], r['label']) for r in rows] == [
    ('throughput', label) for label in ('ar', 'lookup-8', 'lookup:Other-8')
  ]
  found = throughput_figure.FIGURE.marks(rows)[30:]
  assert [m['method'] for m in found] == [
    *('plain decoding', 'prompt lookup', 'Other')
  ]
  assert all(m['concurrency'] == 2 and m['equal'] == 6 for m in found)
  assert [m['over_plain'] for m in found] == [1, 2, 2]
  assert paper_tables.overview(rows)[1][1] == '2 at a time'
  assert 'default, by concurrent requests' in paper.told(rows)


def test_vocabulary(tmp_path):
  """Catches a list that is lost, and sizes of another one."""
  rows = measure(
    'med_vocabulary',
    tmp_path,
    "paper_tables.Vocabulary.budgets = {'draft_model': [5]}",
    'paper_tables.Vocabulary.lists = [4]',
    'paper_tables.Vocabulary.buffers = [0, 2]',
    'paper_tables.Target.ranks = [1, 2, 4, 5, 7, 8]',
  )
  assert [(r['label'], r['list'], r['buffer']) for r in rows] == [
    *(('ar', None, None), ('draft_model-5', None, None)),
    *(('draft_model-5+4+0', 4, None), ('draft_model-5+4+2', 4, 2)),
  ]
  assert all(r['texts_equal'] == r['prompts'] == 2 for r in rows)
  found = vocabulary_figure.FIGURE.marks(rows)[22:]
  assert [m['method'] for m in found] == [
    *('whole vocabulary', 'FR-Spec', 'EvoSpec')
  ]
  assert {m['drafter'] for m in found} == {'draft model'}


def test_variants_of_a_target():
  """Catches options of one method given to another, and gin left out."""
  run.parse([f'{FOLDER}/math500_speedup_qwen3.gin'], [])
  table = gin.get_configurable(paper_tables.SpeedUp)()
  small, large = table.targets
  assert (small.name, large.path) == ('Qwen3-4B', '/models/Qwen3-8B')
  variants = {v.label: v for v in small.variants(table.budgets)}
  assert list(variants) == [
    *('eagle3-16', 'eagle3-64', 'dflash-16', 'ddtree-16', 'ddtree-64'),
    *('taps-65', 'treeflash-16', 'treeflash-64'),
  ]
  assert variants['ddtree-64'].method.keywords == {'nodes': 64}
  assert variants['ddtree-64'].drafter == '/models/Qwen3-4B-DFlash-b16'
  scorers = {v.label for v in variants.values() if v.scorer}
  assert scorers == {'taps-65'}


def test_vocabularies_of_a_target():
  target = paper_tables.Target(ranks=[1, 2, 3])
  make = paper_tables._vocabulary
  assert make(target, 2, 0) == FrSpec(ranks=[1, 2, 3], size=2)
  assert make(target, 2, 4) == EvoSpec(ranks=[1, 2, 3], size=2, buffer=4)
  with pytest.raises(ValueError, match='has no ranks'):
    make(paper_tables.Target(), 2, 0)


@pytest.mark.parametrize('name', ['', 'a/b', '..'])
def test_names_that_no_folder_may_have(name):
  with pytest.raises(ValueError, match='a name that a folder may have'):
    paper_tables.Target(name=name)


def test_full_size_files_name_what_is_published():
  """Their targets are those of the tables, so that figures match them."""
  for name, kind in (
    ('math500_speedup', 'SpeedUp'),
    ('math500_throughput', 'Throughput'),
  ):
    run.parse([f'{FOLDER}/{name}_qwen3.gin'], [])
    table = gin.get_configurable(getattr(paper_tables, kind))()
    with (DATA / f'{name}.csv').open(newline='') as file:
      known = {row['target'] for row in csv.DictReader(file)}
    assert {target.name for target in table.targets} <= known


class TestStudy:
  """A model studied whole: acceptance over many prompts, speed over few."""

  STUDY = """
from __gin__ import dynamic_registration
from experiments import evaluate
from experiments import paper
from experiments import paper_study
paper.paper.table = @paper_study.Study()
paper_study.Study.laws = [
    @paper_study.Law(), @plain/paper_study.Law(), @noise/paper_study.Law()
]
plain/paper_study.Law.temperature = 1.0
plain/paper_study.Law.coupled = False
noise/paper_study.Law.temperature = 1.0
paper_study.Study.prompts = {'sums': 'a', 'words': 'b'}
paper_study.Study.budgets = {'dflash': [4], 'lookup': [3]}
evaluate.evaluate.chat = False
evaluate.evaluate.stop_at_end = False
"""

  def measure(self, tmp_path, *params):
    path = tmp_path / 'study.gin'
    path.write_text(self.STUDY)
    run.parse([str(path)], [f'paper_study.Study.{p}' for p in params])
    return gin.get_configurable(paper.paper)(run_dir=tmp_path / 'run')

  def test_cells_and_their_table(self, tmp_path):
    rows = self.measure(tmp_path, 'many = 2', 'batch = 2', 'few = 2')
    lines = paper_study.table(rows)
    assert len(lines) == 1 + 2 * 3 * 3
    laws = [(line[0], line[1]) for line in lines[1::3]]
    assert laws == [
      (name, law)
      for name in ('sums', 'words')
      for law in ('0', '1 uncoupled', '1 coupled')
    ]
    dflash = next(line for line in lines if line[2] == 'dflash')
    # Two rounds of two tokens against four rounds; all texts of both runs.
    assert dflash[3:] == [
      *('4', '2.00 [2.00, 2.00]', '2.00', '4.0', '2.00 [2.00, 2.00]', '4/4')
    ]
    assert paper.told(rows).startswith('| prompts | T | method')
    before = sorted(p for p in (tmp_path / 'run').rglob('*') if p.is_file())
    assert self.measure(tmp_path, 'many = 2', 'batch = 2', 'few = 2') == rows
    after = sorted(p for p in (tmp_path / 'run').rglob('*') if p.is_file())
    assert before == after

  def test_only_what_can_be_coupled_is_told(self):
    target = paper_tables.Target()
    made = paper_study._variants(target, {'dflash': [4], 'lookup': [3]}, False)
    told = [v.method.keywords.get('coupled') for v in made]
    assert told == [False, None]

  @pytest.mark.parametrize(
    ('params', 'message'),
    [
      (['prompts = {}'], 'no prompts'),
      (['few = 0'], 'few is 0'),
      (['targets = []'], 'no targets'),
    ],
  )
  def test_what_cannot_be(self, tmp_path, params, message):
    with pytest.raises(ValueError, match=message):
      self.measure(tmp_path, *params)

  def test_a_law_that_is_none(self):
    with pytest.raises(ValueError, match='temperature is -1'):
      paper_study.Law(temperature=-1)
