"""Counting, ranking and the files of ranked vocabularies."""

import json

import numpy as np
import pytest
from byte_lm_fixture import FOLDER
from safetensors.numpy import save_file

from specjax.vocab import ranks as lib

COUNTS = np.array([5, 0, 9, 5, 1, 0, 9, 2])


def test_counts_are_occurrences():
  """Catches a count per text, and ids that shift by one."""
  got = lib.count_tokens([[1, 1, 3], [], [0, 1]], 5)
  assert got.tolist() == [1, 3, 0, 1, 0]


def test_rank_is_must_have_then_count_then_id():
  """Ties go to the lower id; must-haves stay although they never occur."""
  rank = lambda must, size: lib.rank_tokens(COUNTS, must, size).tolist()
  assert rank((), 3) == [0, 2, 6]  # 0 and 3 have equal counts
  assert rank((5, 1, 5), 4) == [1, 2, 5, 6]
  assert rank((5,), 8) == list(range(8))


@pytest.mark.parametrize(
  ('must', 'size', 'says'),
  [
    ((5, 1), 1, 'at least 2'),
    ((), 9, 'at most 8'),
    ((), 0, 'size is 0'),
    ((), 2.0, r'size is 2\.0'),
    ((8,), 3, 'ids are 0 to 7'),
  ],
)
def test_wrong_sizes_are_refused(must, size, says):
  with pytest.raises(ValueError, match=says):
    lib.rank_tokens(COUNTS, must, size)


def test_coverage_is_a_share_of_occurrences():
  assert lib.coverage(COUNTS, np.array([2, 6])) == 18 / 31
  assert np.isnan(lib.coverage(COUNTS * 0, np.array([2])))


def saved(tmp_path):
  id_I = lib.rank_tokens(COUNTS, (5,), 5)
  made = lib.Ranks(
    id_I=id_I,
    count_I=COUNTS[id_I],
    must_have=(5,),
    corpus='a corpus',
    tokenizer='ab12',
    coverage=0.5,
  )
  path = tmp_path / 'ranks.safetensors'
  lib.save_ranks(made, path)
  return path


def test_a_file_comes_back_and_can_be_cut(tmp_path):
  """A cut by id, or one that forgets what must be there, shows."""
  got = lib.load_ranks(saved(tmp_path))
  assert got.id_I.tolist() == [0, 2, 3, 5, 6] and got.id_I.dtype == np.int32
  assert got.count_I.tolist() == [5, 9, 5, 0, 9]
  assert (got.must_have, got.corpus, got.tokenizer) == (
    (5,),
    'a corpus',
    'ab12',
  )
  assert got.coverage == 0.5
  assert lib.chosen(saved(tmp_path), 3, 8).tolist() == [2, 5, 6]
  assert lib.chosen(got, None, 8).tolist() == got.id_I.tolist()


@pytest.mark.parametrize(
  'ids', [[7, 3, 2], [1, 7, 3, 2, 1], [7, 3, 7, 3, 2], [7, 3, 2, 4, 7, 4]]
)
def test_public_lists_are_made_distinct(tmp_path, ids):
  """Length r, r + 1, r + 2, unsorted, with forced ids twice."""
  path = tmp_path / 'list.json'
  path.write_text(json.dumps(ids))
  got = lib.chosen(str(path), None, 8)
  assert got.tolist() == sorted(set(ids)) and got.dtype == np.int32
  first = list(dict.fromkeys(ids))[:2]
  assert lib.chosen(ids, 2, 8).tolist() == sorted(first)


@pytest.mark.parametrize(
  ('ids', 'size', 'says'),
  [
    ([], None, 'is empty'),
    ([1, 8], None, r'ids 1 to 8 and the target has 0 to 7'),
    ([-1, 2], None, 'ids -1 to 2'),
    ([1, 1, 2], 3, '2 distinct ids'),
    ([1, 2], 0, 'size is 0'),
    ([0, 1, 2, 3], 9, '8 tokens'),
    ([1, 2], 1.0, r'size is 1\.0'),
    ([1, 2], True, 'size is True'),
    ([1.5, 2.5], None, r'is \[1\.5, 2\.5\]; give whole ids'),  # not 1 and 2
    ([[1, 2], [3, 4]], None, 'give whole ids'),  # not four ids
    ([[1], [2, 3]], None, 'give whole ids'),
    ([2**70], None, 'give whole ids'),
    (['a'], None, 'give whole ids'),
    ([True, False], None, 'give whole ids'),
    ({1, 2}, None, 'give whole ids'),
    (None, None, 'is None; give whole ids'),
    (5, None, 'is 5; give whole ids'),
  ],
)
def test_wrong_lists_are_refused(ids, size, says):
  with pytest.raises(ValueError, match=says):
    lib.chosen(ids, size, 8)


def test_wrong_files_are_refused(tmp_path):
  """Each says what to do; nothing is unpickled."""
  with pytest.raises(ValueError, match='is no file'):
    lib.load_ranks(tmp_path / 'none.json')
  for name, content, says in (
    ('freq.pt', b'x', r'torch\.load.*freq\.json'),
    ('ids.json', b'{"a": 1}', 'no JSON list'),
    ('more.json', b'[1, 2.5]', 'no JSON list'),
    ('cut.safetensors', b'xx', r'neither .* nor a \.json list'),
  ):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
      lib.load_ranks(tmp_path / name)
  model = FOLDER / 'dflash'
  with pytest.raises(ValueError, match='no token ranks'):
    lib.load_ranks(model / 'model.safetensors')
  with pytest.raises(ValueError, match='is no file'):
    lib.load_ranks(tmp_path)


def test_a_file_without_its_tensors_is_refused(tmp_path):
  path = tmp_path / 'half.safetensors'
  metadata = {'format': lib.FORMAT}
  save_file({'id': np.arange(3, dtype=np.int32)}, path, metadata=metadata)
  with pytest.raises(ValueError, match='neither a file of token ranks'):
    lib.load_ranks(path)


def test_a_list_is_not_cut_to_more_than_it_has(tmp_path):
  """It would be filled with ids that are not in it."""
  with pytest.raises(ValueError, match='from 1 to 5'):
    lib.load_ranks(saved(tmp_path)).first(6)


def test_ids_of_another_tokenizer_are_not_counted():
  with pytest.raises(ValueError, match='ids 0 to 5 and the target has 0 to 4'):
    lib.count_tokens([[1], [0, 5]], 5)


def test_tokenizer_hash_follows_the_file(tmp_path):
  assert lib.tokenizer_hash(tmp_path) == ''
  (tmp_path / 'tokenizer.json').write_text('a')
  first = lib.tokenizer_hash(tmp_path)
  (tmp_path / 'tokenizer.json').write_text('b')
  assert len(first) == 16 and lib.tokenizer_hash(tmp_path) != first
