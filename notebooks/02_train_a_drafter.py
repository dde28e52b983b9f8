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
# # Train a drafter in a minute
#
# [![Open in Colab][badge]][colab]
#
# A drafter learns its target's own answers. Here an EAGLE-3 drafter of the
# packaged target sees four dozen of them; see
# [training](../docs/training.md) for the packaged ones, which saw thousands.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/02_train_a_drafter.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import functools
import json
import pathlib
import tempfile

import matplotlib.pyplot as plt

import specjax
from experiments import run, shapes
from experiments.held_out import HeldOut
from experiments.make_corpus import Making, make
from experiments.prompts import read_prompts, to_ask
from experiments.train import Rows, train
from specjax.methods import eagle3
from specjax.training.loop import Pace
from specjax.training.objectives.eagle3 import Eagle3
from specjax.training.step import Optimizer

work = pathlib.Path(tempfile.mkdtemp())

# %% [markdown]
# **1. Answers.** The first sentences of 16 questions, each answered three
# times, greedy and sampled. The other four of the packaged set are held out.

# %%
questions = [q.partition('. ')[0] for q in read_prompts('gsm8k_test_20')]


def write(name, prompts):
  path = work / name
  path.write_text(''.join(json.dumps({'prompt': p}) + '\n' for p in prompts))
  return str(path)


seen = write('seen.jsonl', [q for q in questions[:16] for _ in range(3)])
unseen = write('unseen.jsonl', questions[16:])
manifest = make(
  Making(
    prompts=seen,
    out=str(work / 'corpus'),
    temperatures=(0.0, 0.7, 1.0),
    max_new_tokens=64,
    rows=48,
  )
)
print(manifest['done'])

# %% [markdown]
# **2. Training.** One layer, random but for the target's head and last norm.
# `train` writes a folder in the published layout.

# %%
method = functools.partial(eagle3.build, width=1, nodes=5)
folder = train(
  run_dir=work / 'run',
  target='default',
  method=method,
  drafter=shapes.Eagle3(),
  corpus=str(work / 'corpus'),
  out=str(work / 'drafter'),
  objective=functools.partial(Eagle3, steps=3),
  optimizer=Optimizer(rate=3e-3, steps=45, b2=0.95),
  rows=Rows(rows=2, length=256),
  pace=Pace(log=5, save=45, look=15),
  held_out=HeldOut(prompts=unseen, limit=4, max_new_tokens=48, batch=4),
  dtype='float32',
)
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# **3. What it is worth.** The loss falls; what counts is how many tokens a
# round brings on questions that it has not seen.

# %%
rows = run.read_rows(work / 'run' / 'train.jsonl')
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout='constrained')
losses = [row for row in rows if 'loss' in row]
left.plot([r['step'] for r in losses], [r['loss'] for r in losses])
left.set(xlabel='step', ylabel='loss')
looks = [row for row in rows if 'accepted' in row]
right.plot([r['step'] for r in looks], [r['accepted'] for r in looks], 'o-')
right.axhline(1, color='black', linewidth=1)
right.set(xlabel='step', ylabel='tokens per round, held out')
plt.show()

# %% [markdown]
# The folder is a drafter like any other, and no text depends on it.

# %%
asked = to_ask(read_prompts(unseen))
plain = specjax.load(method='ar')
mine = specjax.load(method=method, drafter=folder)
want = plain.generate(asked, max_new_tokens=48)
got = mine.generate(asked, max_new_tokens=48)
assert got.tokens == want.tokens
packaged = specjax.load(method=method).generate(asked, max_new_tokens=48)
print(f'this minute  {got.stats.mean_accepted:.2f} tokens per round')
print(f'the packaged {packaged.stats.mean_accepted:.2f}')
assert got.stats.mean_accepted > 1.5
