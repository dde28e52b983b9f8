"""Prompts of a corpus: a file, or a data set of the hub."""

from __future__ import annotations

import pathlib

from experiments.prompts import BUILTIN, read_prompts


def read_source(
  source: str, limit: int | None
) -> tuple[pathlib.Path, list[str]]:
  """(file, its prompts): by path, by name, or from the hub.

  Args:
    source: a JSON-lines file, a packaged set, a data set `owner/name` that has
      one such file, or `owner/name/path/in/it.jsonl`.
    limit: prompts to read at most.

  Raises:
    ValueError: neither is there, or a line that cannot be read.
  """
  path = BUILTIN.get(source) or pathlib.Path(source).expanduser()
  if not path.is_file() and _is_hub_id(source):
    path = _from_hub(source)
  return path, read_prompts(
    source if source in BUILTIN else str(path), limit=limit
  )


def _is_hub_id(source: str) -> bool:
  return '/' in source[1:-1] and not source.startswith(('.', '/', '~'))


def _from_hub(source: str) -> pathlib.Path:
  """A data set's file, downloaded."""
  from huggingface_hub import HfApi, hf_hub_download  # only where it is needed

  owner, name, *rest = source.split('/')
  repo = f'{owner}/{name}'
  try:
    files = (
      ['/'.join(rest)]
      if rest
      else [
        file
        for file in HfApi().list_repo_files(repo, repo_type='dataset')
        if file.endswith('.jsonl')
      ]
    )
    if len(files) == 1:
      return pathlib.Path(hf_hub_download(repo, files[0], repo_type='dataset'))
  except Exception as error:
    raise ValueError(
      f'prompts {source!r} are no local file, and the hub did not give them '
      f'({type(error).__name__}); download the file and pass its path.'
    ) from error
  found = ', '.join(files[:9]) or 'none, so download and convert one'
  raise ValueError(
    f'the data set {repo} has {len(files)} JSON-lines files; name one as '
    f'{repo}/FILE: {found}.'
  )
