"""Who may import whom, read from the sources and not from what happens to run.

The arrows keep a method's three parts apart: a drafter that knew a tree, or a
loop that knew a drafter, could not be combined with another one.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BASE = {'types', 'sampling', 'candidates', 'tree_ops', 'checks'}
BASE |= {'sharding', 'ops'}
# What a part of specjax may import from the rest of it; itself goes without
# saying. Parts that are not named stand above all of these.
ARROWS = {
  'types': set(),
  'checks': set(),
  'tree_ops': {'types'},
  'sharding': {'checks'},
  'ops': {'types', 'sharding'},
  'filtering': {'types', 'ops'},
  'sampling': {'types', 'filtering'},
  'candidates': {'types', 'sampling', 'ops'},
  'metrics': {'types'},
  'inputs': {'types', 'sampling', 'checks'},
  'models': BASE,
  'weights': {'types', 'models', 'sharding'},
  'method': {'types', 'models', 'checks'},
  'drafters': BASE | {'models'},
  'trees': BASE | {'models'},  # a learned one names its tensors
  'verify': BASE,
  'decode': BASE | {'models', 'method'},
  'rules': {'trees', 'verify', 'method'},
  'vocab': BASE | {'drafters', 'weights', 'method', 'models'},
  'training': BASE
  | {'drafters', 'trees', 'decode', 'method', 'models'}
  | {'weights', 'vocab', 'inputs'},
  'methods': {
    'rules',
    'drafters',
    'trees',
    'verify',
    'method',
    'models',
    'checks',
  },
}
EDGE = {'gin', 'absl', 'matplotlib'}  # settings, flags and plots
REFERENCES = {'torch', 'transformers'}  # what we are compared with


def imports(source: str) -> set[str]:
  """Dotted names a module imports, anywhere in it.

  `from a import b` counts as a.b: b may be a module or a name in one.
  """
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'line {node.lineno}: relative import'
      found |= {f'{node.module}.{alias.name}' for alias in node.names}
  return found


def wrong_arrows(part: str, source: str) -> set[str]:
  """What a module of this part of specjax imports and should not."""
  allowed = ARROWS.get(part)
  wrong = set()
  for name in imports(source):
    top, _, rest = name.partition('.')
    if top in EDGE | REFERENCES | {'experiments', 'tests'}:
      wrong.add(name)
    if top == 'specjax' and allowed is not None:
      unit = rest.split('.')[0]
      if unit != part and unit not in allowed:
        wrong.add(name)
  return wrong


def sources(folder: str) -> list[pathlib.Path]:
  return sorted((ROOT / folder).rglob('*.py'))


def part_of(path: pathlib.Path) -> str:
  return path.relative_to(ROOT / 'specjax').parts[0].removesuffix('.py')


class TestArrows:
  def test_within_specjax(self):
    """Parts are there, and none imports what stands beside or above it."""
    paths = sources('specjax')
    assert ARROWS.keys() <= {part_of(p) for p in paths}
    wrong = {
      str(p.relative_to(ROOT)): names
      for p in paths
      if (names := wrong_arrows(part_of(p), p.read_text()))
    }
    assert not wrong

  def test_kernels_know_jax_only(self):
    """They could be lifted out of this project."""
    paths = sources('pallas_kernels')
    assert paths
    above = EDGE | REFERENCES | {'specjax', 'experiments', 'tests'}
    for path in paths:
      tops = {name.split('.')[0] for name in imports(path.read_text())}
      assert not tops & above, path

  def test_references_are_for_recorders(self):
    """Tests run without torch: it only records what they compare with.

    Benchmarks against it find it in one place.
    """
    for path in sources('tests') + sources('experiments'):
      tops = {name.split('.')[0] for name in imports(path.read_text())}
      recorder = path.parent.name == 'goldens' and path.name[:7] == 'record_'
      if not recorder and path.name != 'hf_generate.py':
        assert not tops & REFERENCES, path


class TestPower:
  @pytest.mark.parametrize(
    ('part', 'line'),
    [
      ('drafters', 'from specjax.trees.chain import Chain'),
      ('drafters', 'from specjax import verify'),
      ('trees', 'import specjax.drafters.lookup'),
      ('verify', 'def f():\n  from specjax.trees import chain'),
      ('decode', 'from specjax.verify.follow import Follow'),
      ('decode', 'from specjax.methods import ar'),
      ('models', 'from specjax.method import Method'),
      ('types', 'from specjax import sampling'),
      ('api', 'import gin'),
      ('text', 'from transformers import AutoTokenizer'),
      ('decoder', 'from experiments import timing'),
    ],
  )
  def test_a_wrong_arrow_is_seen(self, part, line):
    assert wrong_arrows(part, line)

  @pytest.mark.parametrize(
    ('part', 'line'),
    [
      ('verify', 'from specjax.verify.follow import Follow'),
      ('drafters', 'from specjax.models import cache'),
      ('decode', 'import jax\nfrom specjax import sampling as s'),
      ('api', 'from specjax import methods'),
    ],
  )
  def test_a_right_arrow_passes(self, part, line):
    assert not wrong_arrows(part, line)
