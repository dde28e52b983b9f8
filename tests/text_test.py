"""Tokenizers and chat templates."""

import json
import pathlib

import pytest
from byte_lm_fixture import FOLDER

from specjax.text import ByteTokenizer, Tokenizer, load_tokenizer

ROOT = pathlib.Path(__file__).parents[1]
SMOLLM2 = ROOT / 'experiments' / 'smollm2'


@pytest.fixture(scope='module')
def smollm2() -> Tokenizer:
  return load_tokenizer(SMOLLM2)


@pytest.fixture
def folder(tmp_path):
  """A checkpoint folder with SmolLM2's tokenizer and settings to be chosen."""
  (tmp_path / 'tokenizer.json').symlink_to(SMOLLM2 / 'tokenizer.json')

  def fill(settings=None, template=None):
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(settings or {}))
    if template is not None:
      (tmp_path / 'chat_template.jinja').write_text(template)
    return load_tokenizer(tmp_path)

  return fill


def user(content):
  return [{'role': 'user', 'content': content}]


def test_chat_ids_are_those_of_transformers(smollm2, goldens):
  """Catches a wrong block trimming, a doubled special token, a lost turn."""
  runs = json.loads((goldens / 'smollm2_greedy.json').read_text())['runs']
  lines = (ROOT / 'experiments/data/gsm8k_test_20.jsonl').read_text()
  for run, line in zip(runs, lines.splitlines(), strict=True):
    assert smollm2.chat(user(json.loads(line)['prompt'])) == run['prompt_ids']


def test_decode_gives_the_text_back_without_special_tokens(smollm2):
  """Catches an end token in the text, and a lost leading space."""
  ids = smollm2.encode(' Zoë has ducks\n\n16 eggs')
  assert smollm2.decode([*ids, 2]) == ' Zoë has ducks\n\n16 eggs'
  assert smollm2.eos_ids == (2,)
  assert smollm2.vocab_size == 49152


def test_template_sees_thinking_and_special_tokens(folder):
  """Catches a lost switch, an unread dict form, and jinja's own tojson."""
  tokenizer = folder(
    {
      'bos_token': {'content': '<|im_start|>', 'lstrip': False},
      'eos_token': '<|im_end|>',
      'chat_template': 'not this one',
    },
    '{{ bos_token }}{% if enable_thinking %}think{% endif %}\n'
    '{% for m in messages %}\n'
    '  {% if m.content == "skip" %}{% continue %}{% endif %}\n'
    '{{ m | tojson }}\n'
    '{% endfor %}\n'
    '{{ eos_token }}{{ strftime_now("%%") }}',
  )
  messages = [*user('skip'), *user("<a> & 'é'")]
  body = '{"role": "user", "content": "<a> & \'é\'"}\n'
  show = lambda ids: tokenizer.backend.decode(ids, skip_special_tokens=False)
  think, plain = (tokenizer.chat(messages, thinking=t) for t in (True, False))
  assert show(think) == f'<|im_start|>think\n{body}<|im_end|>%'.replace(
    'think\n', 'think'
  )
  assert show(plain) == show(think).replace('think', '')


def test_named_templates_use_the_default(folder):
  named = [
    {'name': 'tool_use', 'template': 'tools'},
    {'name': 'default', 'template': 'plain'},
  ]
  tokenizer = folder({'chat_template': named})
  assert tokenizer.decode(tokenizer.chat(user('x'))) == 'plain'
  with pytest.raises(ValueError, match=r"tool_use.*none named 'default'"):
    folder({'chat_template': named[:1]})


def test_errors_say_what_is_wrong(folder, smollm2):
  with pytest.raises(ValueError, match='has no chat template'):
    folder().chat(user('x'))
  refusing = folder(template='{{ raise_exception("no system role") }}')
  with pytest.raises(ValueError, match='no system role'):
    refusing.chat(user('x'))
  with pytest.raises(ValueError, match='message 1 is'):
    smollm2.chat([*user('x'), {'role': 'user'}])


def test_templates_are_sandboxed(folder):
  """Catches a plain environment: a checkpoint's template is foreign code."""
  for attack in (
    '{{ messages.__class__.__mro__ }}',
    '{{ messages.append(1) }}',
  ):
    with pytest.raises(ValueError, match='refused'):
      folder(template=attack).chat(user('x'))


def test_ends_come_from_generation_config(folder, tmp_path):
  """Catches a chat model that runs past its turn: config.json knows one end."""
  (tmp_path / 'config.json').write_text('{"eos_token_id": 0}')
  assert folder({'eos_token': '<|im_end|>'}).eos_ids == (0, 2)
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [2, 5]}')
  assert folder({'eos_token': '<|im_end|>'}).eos_ids == (2, 5)


def test_bytes(tmp_path):
  """Catches ids that are no bytes in a text, and half characters that raise."""
  assert load_tokenizer(tmp_path) is None
  marker = {'type': 'bytes', 'end': 257, 'mask': 256}
  (tmp_path / 'bytes.json').write_text(json.dumps(marker))
  tokenizer = load_tokenizer(tmp_path)
  assert tokenizer == ByteTokenizer(end=257, mask=256)
  assert tokenizer.encode('é!') == [0xC3, 0xA9, 0x21]
  assert tokenizer.decode([0xC3, 0xA9, 256, 0x21, 257]) == 'é!'
  assert tokenizer.decode([0x21, 0xC3]) == '!\ufffd'
  assert tokenizer.chat(user('Why?')) == list(b'Why?\n')
  assert tokenizer.eos_ids == (257,)
  (tmp_path / 'bytes.json').write_text('{"type": "utf-16"}')
  with pytest.raises(ValueError, match=r'bytes\.json holds'):
    load_tokenizer(tmp_path)


def test_embedded_model_has_its_marker():
  folder = FOLDER / 'target'
  assert isinstance(load_tokenizer(folder), ByteTokenizer)
