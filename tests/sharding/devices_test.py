"""Eight simulated devices: they exist in a process that was told so at once."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob('*_on_eight.py'))


def run(file: str, *arguments: str) -> subprocess.CompletedProcess:
  flags = '--xla_force_host_platform_device_count=8'
  command = [sys.executable, '-m', 'pytest', '-q', '-n', '0']
  return subprocess.run(
    [*command, *arguments, str(HERE / file)],
    env={**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'},
    cwd=HERE.parents[1],
    capture_output=True,
    text=True,
    timeout=900,
  )


@pytest.mark.parametrize('file', FILES)
def test_on_eight(file):
  done = run(file, '--durations=8')
  print(done.stdout)
  assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_is_run():
  assert len(FILES) >= 3
