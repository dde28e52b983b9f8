"""Files of a checkpoint: opened for reading, replaced as a whole.

Every error names the file and what to do with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  numpy learns bfloat16 from it
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'


def but_dtypes(settings: Mapping[str, Any]) -> dict[str, Any]:
  """What config.json says of a model, in whatever dtype it is stored."""
  stored = json.loads(json.dumps(settings))  # tuples to lists, as in the file
  return {k: v for k, v in stored.items() if k not in ('dtype', 'torch_dtype')}


class Stored(NamedTuple):
  """One tensor of an open file."""

  file: Any
  name: str
  shape: tuple[int, ...]
  dtype: str

  def read(self, index: Sequence[slice] | None = None) -> np.ndarray:
    """All of it, or a slice of its last axes; those before them are one."""
    if index is None or [(0, n) for n in self.shape[-len(index) :]] == [
      (at.start, at.stop) for at in index
    ]:
      return self.file.get_tensor(self.name)
    missing = len(self.shape) - len(index)
    index = (slice(None),) * missing + tuple(index[max(-missing, 0) :])
    return self.file.get_slice(self.name)[index]


@contextlib.contextmanager
def opened(source: pathlib.Path) -> Iterator[dict[str, Stored]]:
  """All tensors of a checkpoint by stored name, while its files are open."""
  stored = {}
  with contextlib.ExitStack() as stack:
    for path in _files(source):
      try:
        file = stack.enter_context(safe_open(path, framework='numpy'))
      except FileNotFoundError:
        raise ValueError(f'{path} does not exist.') from None
      except (SafetensorError, OSError) as error:
        raise ValueError(
          f'{path} is damaged or no safetensors file ({error}); '
          'download it again.'
        ) from error
      for name in file.keys():  # noqa: SIM118  not a mapping
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        stored[name] = Stored(file, name, shape, part.get_dtype())
    yield stored


def _files(source: pathlib.Path) -> list[pathlib.Path]:
  """The one file, or all shards that the index names."""
  if not source.is_dir():
    return [source]
  if (source / WEIGHTS).exists():
    return [source / WEIGHTS]
  index = source / INDEX
  if not index.exists():
    raise ValueError(f'{source} holds neither {WEIGHTS} nor {INDEX}.')
  names = read_settings(index).get('weight_map')
  if not isinstance(names, dict) or not names:
    raise ValueError(f'{index} has no weight_map; download it again.')
  return [source / name for name in sorted(set(names.values()))]


def read_json(path: pathlib.Path) -> Any:
  """A file's content."""
  try:
    return json.loads(path.read_text())
  except FileNotFoundError:
    raise ValueError(f'{path.parent} holds no {path.name}.') from None
  except ValueError as error:  # not JSON, or not even text
    raise ValueError(f'{path} is not valid JSON: {error}.') from None


def read_settings(path: pathlib.Path) -> dict[str, Any]:
  """A file that holds one JSON object."""
  content = read_json(path)
  if not isinstance(content, dict):
    raise ValueError(f'{path} holds no settings but {str(content)[:40]}.')
  return content


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A scratch file that becomes `path` if the block ends well."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    part.touch()
    yield part
    os.replace(part, path)
  finally:
    part.unlink(missing_ok=True)


def write_tensors(
  path: str | os.PathLike,
  tensors: Mapping[str, np.ndarray],
  metadata: Mapping[str, str],
) -> None:
  """Replaces a safetensors file as a whole."""
  with replacing(pathlib.Path(path)) as part:
    mode = part.stat().st_mode
    save_file(dict(tensors), part, metadata=dict(metadata))
    part.chmod(mode)  # safetensors 0.8 writes for the owner only


def write_json(path: str | os.PathLike, value: Any) -> None:
  """Replaces a JSON file as a whole."""
  with replacing(pathlib.Path(path)) as part:
    part.write_text(json.dumps(value, indent=2) + '\n')
