"""Every kernel compiles for devices that are not there, without spills.

One process per device, since a compiler may end its process. Where the extra
`aot` is not installed the reason of the skip names what is missing.
"""

import functools
import json
import os
import subprocess
import sys

import pytest

from experiments import aot_devices, aot_kernels

BACKENDS = {
  'h100': ('mosaic_gpu', 'triton', 'triton'),
  'a100': ('triton',) * 3,
  'v5e': ('tpu',) * 3,
  'v6e': ('tpu',) * 3,
}
OPS = ('tree_attention', 'top_candidates', 'keep_rows')
MOST_REGISTERS = 255


@functools.cache
def rows_for(device: str) -> list[dict]:
  lacking = aot_devices.missing(device)
  if lacking:
    pytest.skip(lacking)
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.aot_kernels', f'--device={device}'],
    capture_output=True,
    text=True,
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
  )
  assert not done.returncode, done.stderr[-2000:]
  return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize('device', BACKENDS)
class TestCompiles:
  def test_every_size_with_its_own_kernel(self, device):
    rows = rows_for(device)
    assert len(rows) == len(list(aot_kernels.calls()))
    expected = dict(zip(OPS, BACKENDS[device], strict=True))
    for row in rows:
      assert row['backend'] == expected[row['op']], row

  def test_nothing_spills(self, device):
    if device in aot_devices.TPUS:
      pytest.skip('a TPU has no registers that ptxas counts')
    for row in rows_for(device):
      assert row['spilled_bytes'] == 0, row
      assert 0 < row['registers'] <= MOST_REGISTERS, row

  def test_no_copy_of_the_cache_and_no_logits(self, device):
    """Temporaries are small against what is read; float32 logits are not."""
    for row in rows_for(device):
      assert row['temp_bytes'] < row['argument_bytes'], row
      if row['op'] == 'keep_rows':
        assert row['temp_bytes'] < row['argument_bytes'] / 100, row


class TestSizes:
  def test_models_that_share_a_size_are_named_once(self):
    calls = list(aot_kernels.calls('tree_attention'))
    assert len(calls) == 2 * len(aot_kernels.ROWS)
    assert calls[0].models == ('qwen3-4b', 'qwen3-8b', 'llama-3.1-8b')

  def test_an_unknown_device(self):
    with pytest.raises(ValueError, match='choose h100, a100, v5e, v6e'):
      aot_devices.device('h1000')
