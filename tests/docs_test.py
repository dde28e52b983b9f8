"""Documents against the code: what a page says is there, is there.

Pages go stale silently: a renamed file, option or method leaves them plausible.
Everything is read from the sources, so nothing is compiled or loaded.

A page names its paper's arXiv id. `ar` and `lookup` have no paper, the latter
names its repository; `coupled` says that it is this project's own.
"""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / 'docs' / 'methods'
PAGES = {p.stem: p for p in sorted(FOLDER.glob('*.md')) if p.stem != 'README'}
DOCUMENTS = [
  *(ROOT / n for n in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md')),
  *sorted((ROOT / 'docs').rglob('*.md')),
]
HEADINGS = (
  *('Formula', 'Use', 'Files', 'Options', 'Checkpoints', 'Lossless'),
  *('Differences', 'Source'),
)
INSTEAD_OF_A_PAPER = {
  'ar': 'No paper.',
  'lookup': 'https://github.com/apoorvumang/prompt-lookup-decoding',
}
TOPS = ('specjax', 'experiments', 'tests', 'pallas_kernels', 'docs')
PATH = re.compile(rf'`((?:{"|".join(TOPS)})/[\w./-]+)`')
DOTTED = re.compile(rf'\b((?:{"|".join(TOPS[:2])})(?:\.[A-Za-z_]\w*)+)')
ARXIV = re.compile(r'\d{4}\.\d{5}')
FENCE = re.compile(r'^```(\w*)\n(.*?)^```', re.M | re.S)
COMMAND = re.compile(r'python -m (experiments(?:\.\w+)+)((?:\\\n|[^\n])*)')


def blocks(text: str, language: str) -> list[str]:
  return [body for kind, body in FENCE.findall(text) if kind == language]


def module_of(dotted: str) -> tuple[pathlib.Path | None, list[str]]:
  """The file of the longest prefix that is a module, and what is left."""
  parts = dotted.split('.')
  for n in range(len(parts), 0, -1):
    base = ROOT.joinpath(*parts[:n])
    for path in (base.with_suffix('.py'), base / '__init__.py'):
      if path.is_file():
        return path, parts[n:]
    if base.is_dir():
      return None, parts[n:]
  return None, parts


def names_in(path: pathlib.Path) -> set[str]:
  """What stands at the top of a module."""
  found = set()
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      found.add(node.name)
    elif isinstance(node, ast.Assign):
      found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
      found |= {a.asname or a.name.split('.')[0] for a in node.names}
  return found


def options_of(path: pathlib.Path, function: str) -> set[str]:
  """All arguments of a function, or fields of a class."""
  for node in ast.parse(path.read_text()).body:
    if getattr(node, 'name', None) != function:
      continue
    if isinstance(node, ast.ClassDef):
      fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
      return {field.target.id for field in fields}
    return {a.arg for a in node.args.args + node.args.kwonlyargs}
  raise AssertionError(f'{path} has no {function}')


def vocabularies() -> dict[str, pathlib.Path]:
  """Files of the classes that `specjax.load(vocab=...)` takes, by name."""
  found = {}
  for path in (ROOT / 'specjax' / 'vocab').glob('*.py'):
    for node in ast.parse(path.read_text()).body:
      methods = {getattr(x, 'name', '') for x in getattr(node, 'body', ())}
      if isinstance(node, ast.ClassDef) and {'check', 'wrap'} <= methods:
        found[node.name] = path
  return found


def methods() -> set[str]:
  folder = ROOT / 'specjax' / 'methods'
  return {p.stem for p in folder.glob('*.py')} - {'__init__'}


def wrong_names(text: str) -> list[str]:
  """Files, modules and names in modules that a text names and are not there."""
  wrong = [p for p in PATH.findall(text) if not (ROOT / p).exists()]
  for dotted in DOTTED.findall(text):
    path, rest = module_of(dotted)
    # `specjax.load` and such are imported into the package.
    if rest and (path is None or rest[0] not in names_in(path)):
      wrong.append(dotted)
  return wrong


def wrong_links(text: str, folder: pathlib.Path) -> list[str]:
  """Relative links to what is not there."""
  links = re.findall(r'\]\(([^)\s]+)\)', text)
  local = [x.split('#')[0] for x in links if '://' not in x]
  return [x for x in local if x and not (folder / x).exists()]


def wrong_calls(source: str) -> list[str]:
  """Calls of `specjax.load` and of vocabularies with what they do not take."""
  wrong, known = [], vocabularies()
  for call in ast.walk(ast.parse(source)):
    if not isinstance(call, ast.Call):
      continue
    given = {k.arg: k.value for k in call.keywords}
    name = ast.unparse(call.func)
    if name == 'specjax.load':
      options = options_of(ROOT / 'specjax' / 'api.py', 'load')
      method = given.get('method', call.args[1] if len(call.args) > 1 else None)
      method = ast.literal_eval(method) if method is not None else 'ar'
      if method not in methods():
        wrong.append(f'method {method}')
        continue
      path = ROOT / 'specjax' / 'methods' / f'{method}.py'
      options = options | options_of(path, 'build')
    elif name in known:
      options = options_of(known[name], name)
    else:
      continue
    wrong += [f'{name}({x}=...)' for x in given if x not in options]
  return wrong


def wrong_flags(text: str) -> list[str]:
  """Flags that a command has and its program has not."""
  wrong = []
  for module, rest in COMMAND.findall(text):
    path, left = module_of(module)
    if path is None or left:
      wrong.append(module)
      continue
    source = path.read_text() + (ROOT / 'experiments' / 'run.py').read_text()
    flags = re.findall(r'--(\w+)', rest)
    wrong += [f for f in flags if not re.search(rf"'(--)?{f}'", source)]
  return wrong


class TestPages:
  def test_there_is_one_for_each_method(self):
    """Catches a method without a page, and a page of a method that is gone."""
    files = {path.stem for path in vocabularies().values()}
    assert {'fr_spec', 'evospec'} <= files
    assert PAGES.keys() == methods() | files | {'coupled'}
    index = (FOLDER / 'README.md').read_text()
    assert not [n for n in PAGES if f'[{n}]({n}.md)' not in index]

  @pytest.mark.parametrize('name', PAGES)
  def test_shape(self, name):
    """Catches a page that leaves a question out, or grows into a manual."""
    text = PAGES[name].read_text()
    assert text.startswith(f'# {name}: ')
    assert tuple(re.findall(r'^## (.*)$', text, re.M)) == HEADINGS
    assert 30 <= len(text.splitlines()) <= 70
    options = text.split('## Options')[1].split('## Checkpoints')[0]
    assert '`nodes`' in options

  @pytest.mark.parametrize('name', PAGES)
  def test_source(self, name):
    """Catches a page without a paper, and ids that the code does not cite."""
    text = PAGES[name].read_text()
    ids = set(ARXIV.findall(text.split('## Source')[1]))
    assert ids or INSTEAD_OF_A_PAPER[name] in text
    assert ("this project's own" in text.split('## Formula')[0]) == (
      name == 'coupled'
    )
    code = ''.join(p.read_text() for p in (ROOT / 'specjax').rglob('*.py'))
    assert not ids - set(ARXIV.findall(code))

  @pytest.mark.parametrize('name', PAGES)
  def test_names_its_own_module(self, name):
    folder = 'methods' if name in methods() else 'vocab'
    own = f'`specjax/{folder}/{name}.py`'
    assert name == 'coupled' or own in PAGES[name].read_text()


@pytest.mark.parametrize(
  'path', DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
class TestDocuments:
  def test_what_is_named_exists(self, path):
    """Catches a file, module or name that was moved or renamed."""
    assert not wrong_names(path.read_text())

  def test_links_resolve(self, path):
    assert not wrong_links(path.read_text(), path.parent)

  def test_python_parses_and_fits(self, path):
    """Catches an option that was renamed, and a call that never worked."""
    for source in blocks(path.read_text(), 'python'):
      assert not wrong_calls(source)

  def test_commands_have_their_flags(self, path):
    assert not wrong_flags(path.read_text())


def test_one_version():
  """The citation, the package and its metadata agree, and are in the log."""
  read = lambda name: (ROOT / name).read_text()
  (version,) = re.findall(r'^version = "(.*)"$', read('pyproject.toml'), re.M)
  assert f'\nversion: {version}\n' in read('CITATION.cff')
  assert f"__version__ = '{version}'" in read('specjax/__init__.py')
  assert f'\n## {version}\n' in read('CHANGELOG.md')


class TestPower:
  @pytest.mark.parametrize(
    'text',
    [
      'See `specjax/trees/besst_first.py`.',
      'See `specjax.trees.best_first.Bests`.',
      'See `specjax.no_such`.',
      'Run `python -m experiments.evaluation`.',
    ],
  )
  def test_a_wrong_name_is_seen(self, text):
    assert wrong_names(text)

  @pytest.mark.parametrize(
    'source',
    [
      "specjax.load('default', 'ddtre')",
      "specjax.load(method='ddtree', node=3)",
      "specjax.load(method='ar', nodes=3, ngram=2)",
      'FrSpec(rank=FILE)',
    ],
  )
  def test_a_wrong_call_is_seen(self, source):
    assert wrong_calls(source)

  def test_a_wrong_link_or_flag_is_seen(self):
    assert wrong_links('[x](no.md) [y](https://a.b)', FOLDER) == ['no.md']
    text = 'python -m experiments.rank_tokens --size=1 \\\n  --ouut=FILE'
    assert wrong_flags(text) == ['ouut']
