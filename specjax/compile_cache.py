"""Compiled programs kept on disk, so that the second run starts at once."""

from __future__ import annotations

import logging
import os
import pathlib

import jax

SWITCH = 'SPECJAX_COMPILE_CACHE'  # a folder, or 'off'


def enable() -> None:
  """Turns jax's persistent cache on, unless the user chose otherwise.

  A cache directory that is configured in jax wins; the environment variable
  SPECJAX_COMPILE_CACHE names another folder, or 'off'.
  """
  choice = os.environ.get(SWITCH, '')
  if choice == 'off' or jax.config.jax_compilation_cache_dir:
    return
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(choice or pathlib.Path(base) / 'specjax' / 'compiled')
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    logging.getLogger(__name__).info('no compile cache: %s', error)
    return
  jax.config.update('jax_compilation_cache_dir', str(folder))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
