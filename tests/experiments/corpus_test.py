"""Texts that are counted, and what a ranking always keeps."""

import types

import pytest
from byte_lm_fixture import FOLDER

from experiments.corpus import check_files, encoded, responses
from experiments.make_corpus import Making, make
from experiments.rank_tokens import must_have
from specjax.text import load_tokenizer
from specjax.weights.safetensors import read_config

FIELDS = ['question', 'answer']


def test_all_named_fields_count(tmp_path):
  """Catches a field or a last line that is left out, and one that is not
  asked for."""
  first, second = tmp_path / 'a.jsonl', tmp_path / 'b.jsonl'
  first.write_text('{"question": "ab", "answer": "c", "prompt": "x"}\n')
  second.write_text('{"answer": "d", "question": 1}\n{"question": "e"}')
  got = list(encoded([first, second], FIELDS, list))
  assert got == [['a', 'b'], ['c'], ['d'], ['e']]


def test_of_a_corpus_the_responses_count(tmp_path):
  """With their end, and nothing of the prompts."""
  path, folder = tmp_path / 'a.jsonl', str(tmp_path / 'made')
  path.write_text('{"prompt": "xyz", "answer": "ab"}\n')
  target = FOLDER / 'target'
  make(Making(prompts=str(path), out=folder, target=str(target), answers=True))
  tokenizer = load_tokenizer(target)
  got = list(responses([folder], read_config(target), tokenizer))
  assert got == [[97, 98, tokenizer.eos_ids[0]]]
  check_files([folder], str(tmp_path / 'out'), folders=True)
  with pytest.raises(ValueError, match='no corpus'):
    check_files([folder], str(tmp_path / 'out'))


@pytest.mark.parametrize('line', ['{"prompt": "x"}', '[1]', '{"answer": "cut'])
def test_wrong_lines_are_named(tmp_path, line):
  path = tmp_path / 'a.jsonl'
  path.write_text(f'{{"answer": "d"}}\n{line}\n')
  with pytest.raises(ValueError, match=r'a\.jsonl, line 2 is no JSON'):
    list(encoded([path], FIELDS, list))
  with pytest.raises(ValueError, match='no corpus'):
    list(encoded([tmp_path / 'none'], FIELDS, list))


def test_paths_are_checked_before_long_work(tmp_path):
  """The second corpus, and the folder of what is written at the end."""
  check_files([], str(tmp_path / 'out'))
  with pytest.raises(ValueError, match=r'no corpus .*none'):
    check_files([__file__, str(tmp_path / 'none')], 'out')
  with pytest.raises(ValueError, match=r'no folder .*none'):
    check_files([__file__], str(tmp_path / 'none' / 'out'))


def test_ends_and_template_ids_are_kept():
  """Each once; a tokenizer without a template has end ids only."""
  plain = types.SimpleNamespace(eos_ids=(7,))
  assert must_have(plain, (5, 7)) == (5, 7)
  chat = types.SimpleNamespace(
    eos_ids=(7,), template='t', chat=lambda messages: [1, 7, 2, 1]
  )
  assert must_have(chat, (5,)) == (5, 7, 1, 2)
