# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own Qwen3 or LLaMA folder
#
# [![Open in Colab][badge]][colab]
#
# A target is a Hugging Face folder of `Qwen3ForCausalLM`, `Qwen3MoeForCausalLM`
# or `LlamaForCausalLM`: `config.json`, `model.safetensors` (or shards and their
# index) and `tokenizer.json`. Set `FOLDER` to yours. Without one this notebook
# takes SmolLM2 where `python -m experiments.fetch_smollm2 smollm2` has put it,
# and else writes a small LLaMA with random weights.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/04_your_model.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import json
import pathlib
import tempfile

import jax
import tokenizers

import specjax
from experiments.prompts import read_prompts
from specjax.models import transformer
from specjax.models.config import tiny
from specjax.weights.safetensors import save_target

FOLDER = None


# %%
def write_random(folder):
  """A LLaMA of two layers, and a tokenizer of 512 byte pairs."""
  level = tokenizers.pre_tokenizers.ByteLevel
  backend = tokenizers.Tokenizer(tokenizers.models.BPE())
  backend.pre_tokenizer = level(add_prefix_space=False)
  backend.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=512,
    initial_alphabet=level.alphabet(),
    special_tokens=['<end>'],
    show_progress=False,
  )
  backend.train_from_iterator(read_prompts('gsm8k_test_20'), trainer)
  config = tiny(
    family='llama',
    qk_norm=False,
    layers=2,
    vocab=backend.get_vocab_size(),
    eos_ids=(0,),
  )
  # Wide logits: no rounding can swap the two best tokens.
  weights = transformer.init(config, jax.random.key(0), scale=0.3)
  save_target(weights, folder)
  backend.save(str(folder / 'tokenizer.json'))
  template = '{% for m in messages %}{{ m.content }}<end>{% endfor %}'
  (folder / 'chat_template.jinja').write_text(template)
  return folder


def chosen():
  smollm2 = pathlib.Path('smollm2')
  if FOLDER is not None:
    return pathlib.Path(FOLDER)
  if (smollm2 / 'model.safetensors').exists():
    return smollm2
  return write_random(pathlib.Path(tempfile.mkdtemp()))


folder = chosen()
for path in sorted(folder.iterdir()):
  print(f'{path.stat().st_size:12,} bytes  {path.name}')

# %% [markdown]
# Plain decoding first: the text, through the folder's own tokenizer and chat
# template.

# %%
chat = [{'role': 'user', 'content': 'Name three colours, and three again.'}]
ask = dict(max_new_tokens=32, stop_ids=())
plain = specjax.load(target=folder)
config = plain.config
print(f'{config.family}: {config.layers} layers, {config.vocab} tokens')
want = plain.generate([chat], **ask)
print(repr(want.text[0]))

# %% [markdown]
# Prompt lookup needs no drafter, so it runs with any target.

# %%
lookup = specjax.load(target=folder, method='lookup', nodes=5)
got = lookup.generate([chat], **ask)
assert got.tokens == want.tokens
print(f'lookup: {got.stats.mean_accepted:.2f} tokens per round')

# %% [markdown]
# A draft model is a second folder with the same vocabulary. A target that
# drafts for itself is right every time, so that a round brings all 5 tokens:
# a check that weights, positions and caches are read as they should be.

# %%
itself = specjax.load(
  target=folder, method='draft_model', drafter=folder, nodes=5
)
got = itself.generate([chat], **ask)
assert got.tokens == want.tokens
print(f'itself: {got.accepted[0]}')
assert set(got.accepted[0]) == {5}

# %% [markdown]
# A published drafter goes the same way: `method='dflash'` or `'ddtree'` with a
# DFlash folder, `'eagle3'` with an EAGLE-3 one; see the
# [methods](../docs/methods/README.md). To train one,
# [go on here](02_train_a_drafter.ipynb) with `target=FOLDER`.
#
# What would change a logit and is not implemented is refused by name, before
# any weight is read.

# %%
other = pathlib.Path(tempfile.mkdtemp())
settings = json.loads((folder / 'config.json').read_text())
settings['hidden_act'] = 'gelu'
(other / 'config.json').write_text(json.dumps(settings))
try:
  specjax.load(target=other)
except ValueError as error:
  print(error)
else:
  raise AssertionError('gelu was not refused')
