"""The table of compiled kernels: its lines, and its place on the page."""

import pytest

from experiments import aot_kernels, aot_table

GPU = {
  'op': 'tree_attention',
  'size': '1 row',
  'device': 'h100',
  'backend': 'mosaic_gpu',
  'argument_bytes': 33_566_725,
  'temp_bytes': 0,
  'registers': 192,
  'spilled_bytes': 0,
  'launches': 9,
  'shared_bytes': 2048,
}
TPU = GPU | {'device': 'v5e', 'backend': 'tpu'}
for _name in ('registers', 'spilled_bytes', 'launches', 'shared_bytes'):
  del TPU[_name]


class TestTable:
  def test_sizes_stand_together_and_what_is_not_known_is_a_dash(self):
    other = GPU | {'size': '65 rows'}
    lines = aot_table.as_markdown([GPU, other, TPU]).splitlines()
    assert len(lines) == 5
    assert lines[2].endswith('| mosaic_gpu | 192 | 0 | 2 | 9 | 33.57 | 0 |')
    assert lines[3].endswith('| v5e | tpu | - | - | - | - | 33.57 | 0 |')
    assert '65 rows' in lines[4]

  def test_it_goes_between_the_marks_again_and_again(self):
    page = f'# Page\n\n{aot_table.BEGIN}\n{aot_table.END}\nend\n'
    once = aot_table.into(page, '| one |')
    twice = aot_table.into(once, '| two |')
    assert '| one |' in once and '| one |' not in twice
    assert twice.startswith('# Page\n') and twice.endswith('-->\nend\n')

  def test_a_page_without_marks_is_refused(self):
    with pytest.raises(ValueError, match='the page needs the lines'):
      aot_table.into('# Page', '')

  def test_the_page_of_this_repository_has_them(self):
    aot_table.into(aot_table.PAGE.read_text(), '')


@pytest.mark.parametrize(
  ('text', 'backend'),
  [
    ('custom-call @mosaic_gpu_v2', 'mosaic_gpu'),
    ('custom_call_target="__gpu$xla.gpu.triton"', 'triton'),
    ('custom_call_target="tpu_custom_call"', 'tpu'),
    ('fusion', 'xla'),
  ],
)
def test_the_backend_of_a_program(text, backend):
  assert aot_kernels.backend_in(text) == backend
