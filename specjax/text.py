"""Text to ids and back, and chat messages through the model's own template."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specjax.weights.files import read_settings

TOKENIZER = 'tokenizer.json'
BYTES = 'bytes.json'
SETTINGS = 'tokenizer_config.json'
TEMPLATE = 'chat_template.jinja'

Messages = Sequence[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
  """A checkpoint's tokenizer.json with its chat template."""

  backend: tokenizers.Tokenizer
  template: str | None
  special: dict[str, str]  # bos_token, eos_token, ... as a template sees them
  eos_ids: tuple[int, ...]
  folder: str

  @property
  def vocab_size(self) -> int:
    """Ids it knows; a model's table may be padded beyond."""
    return self.backend.get_vocab_size(with_added_tokens=True)

  def encode(self, text: str) -> list[int]:
    """Ids of a text, with the special tokens the checkpoint puts around it."""
    return self.backend.encode(text, add_special_tokens=True).ids

  def decode(self, ids: Sequence[int]) -> str:
    """The text without special tokens."""
    return self.backend.decode(list(ids), skip_special_tokens=True)

  def chat(self, messages: Messages, *, thinking: bool = False) -> list[int]:
    """Ids of a dialogue, up to where the model's answer begins.

    Args:
      messages: dicts with `role` and `content`.
      thinking: what the template reads as `enable_thinking`; a template
        without that switch ignores it.

    Raises:
      ValueError: no template, or one that refuses these messages.
    """
    if self.template is None:
      raise ValueError(
        f'{self.folder} has no chat template (neither {TEMPLATE} nor '
        f'`chat_template` in {SETTINGS}); pass prompts as strings or ids.'
      )
    check_messages(messages)
    try:
      text = (
        _environment()
        .from_string(self.template)
        .render(
          messages=list(messages),
          add_generation_prompt=True,
          enable_thinking=thinking,
          **self.special,
        )
      )
    except jinja2.TemplateError as error:
      raise ValueError(
        f'the chat template of {self.folder} refused {len(messages)} messages '
        f'with roles {[m["role"] for m in messages]}: {error}'
      ) from error
    # The template has written the special tokens already.
    return self.backend.encode(text, add_special_tokens=False).ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByteTokenizer:
  """Ids are the UTF-8 bytes of the text; two ids more for end and mask.

  A dialogue is every message's content followed by a newline, the layout of
  the embedded model's training text; roles and `thinking` are ignored.
  """

  end: int
  mask: int

  @property
  def eos_ids(self) -> tuple[int, ...]:
    return (self.end,)

  @property
  def vocab_size(self) -> int:
    """Ids it knows; a model's table may be padded beyond."""
    return max(self.end, self.mask) + 1

  def encode(self, text: str) -> list[int]:
    """One id per byte."""
    return list(text.encode())

  def decode(self, ids: Sequence[int]) -> str:
    """The text; ids that are no byte are dropped, broken UTF-8 is replaced."""
    return bytes(i for i in ids if i < 256).decode(errors='replace')

  def chat(self, messages: Messages, *, thinking: bool = False) -> list[int]:
    """Ids of the contents, a newline behind each."""
    check_messages(messages)
    return self.encode(''.join(m['content'] + '\n' for m in messages))


def load_tokenizer(
  folder: str | pathlib.Path,
) -> Tokenizer | ByteTokenizer | None:
  """The tokenizer of a checkpoint folder; None where it has none.

  Reads tokenizer.json with tokenizer_config.json and chat_template.jinja, or
  bytes.json: `{"type": "bytes", "end": id, "mask": id}`.

  Raises:
    ValueError: a bytes.json of another form.
  """
  folder = pathlib.Path(folder)
  if (folder / TOKENIZER).exists():
    return _from_hf(folder)
  if (folder / BYTES).exists():
    fields = _read(folder / BYTES)
    if fields.keys() != {'type', 'end', 'mask'} or fields['type'] != 'bytes':
      raise ValueError(
        f'{folder / BYTES} holds {fields}; expected '
        '{"type": "bytes", "end": id, "mask": id}.'
      )
    return ByteTokenizer(end=fields['end'], mask=fields['mask'])
  return None


def _from_hf(folder: pathlib.Path) -> Tokenizer:
  try:
    backend = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
  except Exception as error:  # the library raises nothing narrower
    raise ValueError(f'{folder / TOKENIZER} cannot be read: {error}') from None
  # A training set-up may be saved in the file; prompts are never cut.
  backend.no_truncation()
  backend.no_padding()
  settings = _read(folder / SETTINGS)
  special = {
    name: value['content'] if isinstance(value, dict) else value
    for name, value in settings.items()
    if name.endswith('_token') and isinstance(value, str | dict)
  }
  # generation_config.json knows all ends of a chat model; the others know one.
  eos = _read(folder / 'generation_config.json').get('eos_token_id')
  if eos is None:
    eos = _read(folder / 'config.json').get('eos_token_id')
  ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
  named = backend.token_to_id(special.get('eos_token', ''))
  if named is not None:
    ids = [*ids, named]
  return Tokenizer(
    backend=backend,
    template=_template(folder, settings),
    special=special,
    eos_ids=tuple(dict.fromkeys(ids)),
    folder=str(folder),
  )


def _template(folder: pathlib.Path, settings: dict[str, Any]) -> str | None:
  """chat_template.jinja wins, as in transformers; of named ones 'default'."""
  if (folder / TEMPLATE).exists():
    return (folder / TEMPLATE).read_text()
  template = settings.get('chat_template')
  if isinstance(template, list):
    named = {entry['name']: entry['template'] for entry in template}
    if 'default' not in named:
      raise ValueError(
        f'{folder / SETTINGS} has chat templates {sorted(named)} but none '
        f"named 'default'; put the one to use into {folder / TEMPLATE}."
      )
    return named['default']
  return template


def _environment() -> ImmutableSandboxedEnvironment:
  """What templates written for transformers expect to find."""

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  def tojson(x, ensure_ascii=False, indent=None, separators=None, **kwargs):
    # jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
      x,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      **kwargs,
    )

  env = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
  )
  env.filters['tojson'] = tojson
  env.globals['raise_exception'] = raise_exception
  env.globals['strftime_now'] = lambda form: datetime.datetime.now().strftime(
    form
  )
  return env


def check_messages(messages: Messages) -> None:
  """Raises ValueError unless each message has a role and a text."""
  for i, message in enumerate(messages):
    if not isinstance(message, dict) or not all(
      isinstance(message.get(key), str) for key in ('role', 'content')
    ):
      raise ValueError(
        f'message {i} is {message!r}; a chat prompt is a list of '
        '{"role": ..., "content": ...} dicts.'
      )


def _read(path: pathlib.Path) -> dict[str, Any]:
  """A file's settings; none where there is no file."""
  return read_settings(path) if path.exists() else {}
