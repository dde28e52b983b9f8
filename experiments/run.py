"""Gin, run folders and the record of what a run was made with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util  # gin 0.5.0 uses it without importing it
import json
import math
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin
import jax
from absl import app, flags

from specjax.checks import changes
from specjax.weights.files import replacing

# What gin raises for a configuration file that is wrong.
MISTAKES = (
  ValueError,
  SyntaxError,
  ImportError,
  AttributeError,
  NameError,
  OSError,
)
ROOT = pathlib.Path(__file__).parents[1]
CONFIG = 'operative_config.gin'
RECORD = 'run.json'
DEFAULT = 'experiments/configs/default.gin'
PACKAGES = ('specjax', 'jax', 'jaxlib', 'flax', 'numpy')


def parse(files: Sequence[str], params: Sequence[str]) -> None:
  """Reads gin files, then single bindings, which win.

  Paths are relative to the working directory or to the folder that holds
  `experiments`. Anything bound before is forgotten.

  Raises:
    ValueError: a file, name, parameter or value that cannot be; says which.
  """
  gin.clear_config()
  found = [
    next((p for p in (path, ROOT / path) if p.is_file()), path)
    for path in map(pathlib.Path, files)
  ]
  for path in found:
    if not path.is_file():
      raise ValueError(f'there is no configuration file {path}.')
  try:
    gin.parse_config_files_and_bindings(list(map(str, found)), list(params))
  except MISTAKES as e:
    raise ValueError(f'the gin configuration is wrong: {e}') from e


def define_flags(default: str = DEFAULT) -> None:
  """The flags of every script that takes gin."""
  flags.DEFINE_multi_string('gin_file', [default], 'Configuration files.')
  flags.DEFINE_multi_string('gin_param', [], 'Bindings that win, name=value.')
  flags.DEFINE_string(
    'run_dir', None, 'Folder for results; by default one per configuration.'
  )


def flag_values(name: str) -> flags.FlagValues:
  """Where a script of this `__name__` defines flags.

  Imported scripts keep theirs apart: two of them may share a name, and one
  process could not import both.
  """
  return flags.FLAGS if name == '__main__' else flags.FlagValues()


def command(body: Callable[[], None]) -> Callable[[Sequence[str]], None]:
  """`main` of a script: a caller's mistake is one line and no traceback."""

  def main(argv: Sequence[str]) -> None:
    if argv[1:]:
      raise app.UsageError(f'unexpected arguments: {" ".join(argv[1:])}')
    try:
      body()
    except ValueError as error:
      sys.exit(f'error: {error}')

  return main


def configured(function: Callable[..., Any]) -> tuple[pathlib.Path, Any]:
  """Calls what the flags' gin settings configure: (run folder, result).

  Exits with one line where the settings are wrong, or when interrupted.
  """
  values = flags.FLAGS
  try:
    parse(values.gin_file, values.gin_param)
    folder = pathlib.Path(values.run_dir or default_dir(values.gin_file))
    try:
      return folder, gin.get_configurable(function)(run_dir=folder)
    except KeyboardInterrupt:
      sys.exit(f'interrupted; the same command goes on from {folder}.')
  except (TypeError, ValueError) as error:
    sys.exit(f'error: {error}')


def tabled(
  function: Callable[..., Any], as_table: Callable[[Any], str]
) -> Callable[[], None]:
  """A script's body: rows by the flags' settings, as a table, and where."""

  def show() -> None:
    folder, rows = configured(function)
    print(as_table(rows))
    print(f'\n{rows[0]["device"]}, {rows[0]["dtype"]}; rows: {folder}')

  return show


def default_dir(files: Sequence[str]) -> pathlib.Path:
  """runs/<config>-<hash>: other settings or another machine, other folder."""
  facts = json.dumps([gin.config_str(), versions(), device()], sort_keys=True)
  digest = hashlib.sha256(facts.encode()).hexdigest()[:8]
  return pathlib.Path('runs') / f'{pathlib.Path(files[-1]).stem}-{digest}'


def versions() -> dict[str, str]:
  """Of python and of the packages that decide what is computed."""
  found = {'python': platform.python_version()}
  for name in PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      found[name] = 'not installed'  # run from a checkout
  return found


def device() -> dict[str, Any]:
  """What the arrays live on, and the host's usable cores."""
  first = jax.devices()[0]
  cores = getattr(os, 'sched_getaffinity', None)
  return {
    'platform': first.platform,
    'device': first.device_kind,
    'devices': jax.device_count(),
    'cpus': len(cores(0)) if cores else os.cpu_count(),
    'system': f'{platform.system()} {platform.machine()}',
  }


def open_folder(folder: str | pathlib.Path, settings: dict[str, Any]) -> bool:
  """Makes a run folder, or checks that it was made with these settings.

  Writes the operative gin configuration, and `settings` with versions and
  device, before any result is there.

  Returns:
    Whether the folder was there already, so that its results count.

  Raises:
    ValueError: the folder holds something else; it is left alone.
  """
  folder = pathlib.Path(folder)
  config = gin.operative_config_str()
  record = {'settings': settings, 'versions': versions(), 'device': device()}
  record = json.loads(dumps(record))  # tuples to lists, as it will be read
  if folder.is_file():
    raise ValueError(f'{folder} is a file; give a folder as --run_dir.')
  if folder.is_dir() and any(folder.iterdir()):
    if not (folder / RECORD).exists() or not (folder / CONFIG).exists():
      raise ValueError(
        f'{folder} is not empty and no run folder; give another --run_dir.'
      )
    old = json.loads((folder / RECORD).read_text())
    wrong = changes(old, record, _near)
    if not wrong and (folder / CONFIG).read_text() != config:
      wrong = [f'its {CONFIG} differs']
    if wrong:
      raise ValueError(
        f'{folder} was made with other settings ({"; ".join(wrong)}); its '
        'results are kept as they are, so give another --run_dir.'
      )
    return True
  folder.mkdir(parents=True, exist_ok=True)
  (folder / CONFIG).write_text(config)
  (folder / RECORD).write_text(dumps(record, indent=1) + '\n')
  return False


def _near(value: Any, other: Any) -> str:
  """A value; if it is long, where it begins to differ from the other one."""
  text, beside = repr(value), repr(other)
  if len(text) <= 80:
    return text
  pairs = enumerate(zip(text, beside, strict=False))
  at = next((i for i, (a, b) in pairs if a != b), len(beside))
  return f'...{text[max(at - 40, 0) : at + 40]}...'


def dumps(value: Any, **kwargs: Any) -> str:
  """JSON in which nan is null: the word NaN is no JSON."""
  return json.dumps(_without_nan(value), allow_nan=False, **kwargs)


def _without_nan(value: Any) -> Any:
  if isinstance(value, dict):
    return {name: _without_nan(x) for name, x in value.items()}
  if isinstance(value, list | tuple):
    return [_without_nan(x) for x in value]
  return None if isinstance(value, float) and math.isnan(value) else value


def append_rows(path: pathlib.Path, rows: Iterable[dict[str, Any]]) -> None:
  """Adds JSON lines in one write, on disk when it returns.

  Half a line, left by a kill in mid-write, goes first.
  """
  if _ends_in_mid_line(path):
    whole = path.read_bytes().rpartition(b'\n')
    os.truncate(path, len(whole[0] + whole[1]))
  with path.open('a', encoding='utf-8') as file:
    file.write(''.join(dumps(row) + '\n' for row in rows))
    file.flush()
    os.fsync(file.fileno())


def write_rows(path: pathlib.Path, rows: Iterable[dict[str, Any]]) -> None:
  """Replaces a file of JSON lines as a whole."""
  with replacing(path) as part:
    append_rows(part, rows)


def read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  """All whole lines, and not half a line that a kill in mid-write has left.

  Raises:
    ValueError: a file of anything but JSON objects.
  """
  if not path.exists():
    return []
  if path.is_dir():
    raise ValueError(f'{path} is a folder; give a file of JSON lines.')
  whole, _, _ = path.read_text(encoding='utf-8').rpartition('\n')
  rows = []
  for number, line in enumerate(whole.splitlines(), 1):
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError as error:
      raise ValueError(
        f'{path}, line {number} is not JSON ({error}); give a file of rows.'
      ) from error
  return rows


def _ends_in_mid_line(path: pathlib.Path) -> bool:
  """By its last byte: a file of many rows is not read for each new one."""
  if not path.exists() or not path.stat().st_size:
    return False
  with path.open('rb') as file:
    file.seek(-1, os.SEEK_END)
    return file.read() != b'\n'
