"""What travels with the package: a small target and drafters for it."""

from __future__ import annotations

import pathlib

from specjax.weights.files import read_settings

PRETRAINED = pathlib.Path(__file__).parent / 'pretrained' / 'gsm8k_bytes'


def target_folder(name: str) -> pathlib.Path:
  """The folder of the packaged target, for 'default', or of another one."""
  if name == 'default':
    return PRETRAINED / 'target'
  return pathlib.Path(name).expanduser()


def drafter(method: str) -> pathlib.Path | None:
  """The folder of a method's drafter; None where there is none."""
  return _found('drafters.json', method)


def scorer(method: str) -> pathlib.Path | None:
  """The folder of the scorer of a method's tree, for that drafter."""
  return _found('scorers.json', method)


def drafters() -> list[str]:
  """Names of all packaged drafters, those of no method included."""
  folders = {path.parent.name for path in PRETRAINED.glob('*/config.json')}
  scorers = read_settings(PRETRAINED / 'scorers.json')
  return sorted(folders - {'target', *scorers.values()})


def _found(index: str, method: str) -> pathlib.Path | None:
  name = read_settings(PRETRAINED / index).get(method)
  return None if name is None else PRETRAINED / name
