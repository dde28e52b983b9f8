"""Decodes a few prompts with one method and prints the texts.

python -m experiments.generate --method=lookup --prompt='Two and two is'
"""

from __future__ import annotations

from absl import app, flags

from experiments import run
from experiments.prompts import read_prompts, to_ask
from specjax import api

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder or hub id.', flag_values=_FLAGS
)
_METHOD = flags.DEFINE_string(
  'method', 'ddtree', 'A name in specjax.methods.', flag_values=_FLAGS
)
_DRAFTER = flags.DEFINE_string(
  'drafter', None, 'Folder or hub id.', flag_values=_FLAGS
)
_NODES = flags.DEFINE_integer(
  'nodes', None, 'Rows verified, root included.', flag_values=_FLAGS
)
_DTYPE = flags.DEFINE_enum(
  'dtype', 'auto', api.DTYPES, 'Weights and compute.', flag_values=_FLAGS
)
_PROMPT = flags.DEFINE_multi_string(
  'prompt', None, 'Text; may be repeated.', flag_values=_FLAGS
)
_PROMPTS = flags.DEFINE_string(
  'prompts',
  'gsm8k_test_20',
  'Name or path of a set, where no --prompt is.',
  flag_values=_FLAGS,
)
_LIMIT = flags.DEFINE_integer(
  'limit', 2, 'Prompts taken from the set.', flag_values=_FLAGS
)
_RAW = flags.DEFINE_bool(
  'raw', False, 'Text as it is, without chat template.', flag_values=_FLAGS
)
_THINKING = flags.DEFINE_bool(
  'thinking', False, 'Of the chat template.', flag_values=_FLAGS
)
_NEW = flags.DEFINE_integer(
  'max_new_tokens', 96, 'Tokens per answer.', flag_values=_FLAGS
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.0, '0 is greedy.', flag_values=_FLAGS
)
_TOP_K = flags.DEFINE_integer('top_k', 0, '0 is off.', flag_values=_FLAGS)
_TOP_P = flags.DEFINE_float('top_p', 1.0, '1 is off.', flag_values=_FLAGS)
_MIN_P = flags.DEFINE_float('min_p', 0.0, '0 is off.', flag_values=_FLAGS)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Prompt i is decoded with seed + i.', flag_values=_FLAGS
)


def generate() -> None:
  """Prints each prompt with its answer, and one line of figures."""
  texts = _PROMPT.value or read_prompts(_PROMPTS.value, limit=_LIMIT.value)
  decoder = api.load(
    _TARGET.value,
    _METHOD.value,
    _DRAFTER.value,
    nodes=_NODES.value,
    dtype=_DTYPE.value,
  )
  out = decoder.generate(
    to_ask(texts, chat=not _RAW.value),
    max_new_tokens=_NEW.value,
    temperature=_TEMPERATURE.value,
    top_k=_TOP_K.value,
    top_p=_TOP_P.value,
    min_p=_MIN_P.value,
    seed=_SEED.value,
    thinking=_THINKING.value,
  )
  answers = out.text or [str(ids) for ids in out.tokens]
  for text, answer, reason in zip(
    texts, answers, out.finish_reason, strict=True
  ):
    print(f'--- prompt\n{text}\n--- answer, ended by {reason}\n{answer}')
  stats = out.stats
  print(
    f'---\n{decoder.method.name}, {decoder.nodes} nodes, {decoder.dtype}: '
    f'{stats.tokens} tokens, {stats.mean_accepted:.2f} a round, '
    f'{stats.tokens_per_s:.1f} tokens/s after {stats.compile_s:.1f} s of '
    'compilation'
  )


main = run.command(generate)


if __name__ == '__main__':
  app.run(main)
