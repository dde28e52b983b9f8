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
# # Quickstart
#
# [![Open in Colab][badge]][colab]
#
# Decode with a draft tree, see that the text is the one plain decoding gives,
# and how many tokens a round brings. Everything runs offline on the packaged
# byte model, where a pass of the target costs next to nothing: look at rounds
# here, and measure time on your own target.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/00_quickstart.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import matplotlib.pyplot as plt

import specjax

prompt = 'A robe takes 2 bolts of blue fiber and half that much white.\n'
plain = specjax.load(method='ar')
trees = specjax.load(method='ddtree', nodes=17)

# %% [markdown]
# The same text in fewer passes of the target, greedy and sampled.

# %%
outs = {}
for temperature in (0.0, 1.0):
  ask = dict(max_new_tokens=64, temperature=temperature, seed=0)
  want = plain.generate(prompt, **ask)
  got = trees.generate(prompt, **ask)
  assert got.tokens == want.tokens
  print(f'T={temperature}: {got.text[0]!r}')
  print(f'  {want.stats.rounds} rounds plain, {got.stats.rounds} with a tree')
  outs[temperature] = got

# %% [markdown]
# What each round brought: accepted drafts, and one token of the target's own.

# %%
figure, rows = plt.subplots(2, sharex=True, sharey=True, layout='constrained')
for axes, (temperature, out) in zip(rows, outs.items(), strict=True):
  axes.bar(range(out.rounds[0]), out.accepted[0])
  axes.axhline(1, color='black', linewidth=1)
  mean = out.stats.mean_accepted
  axes.set(title=f'T={temperature}, {mean:.2f} on average', ylabel='tokens')
rows[-1].set_xlabel('round (the line is plain decoding)')
plt.show()

# %% [markdown]
# Any method goes by its name. `nodes` is the number of rows that the target
# verifies per round, root included, for all of them alike.

# %%
want = outs[0.0].tokens
for name in ('lookup', 'dflash', 'ddtree', 'treeflash'):
  nodes = 16 if name == 'dflash' else 17  # its block has 16
  decoder = specjax.load(method=name, nodes=nodes)
  out = decoder.generate(prompt, max_new_tokens=64)
  assert out.tokens == want
  print(f'{name:10} {out.stats.mean_accepted:.2f} tokens per round')

# %% [markdown]
# Next: [one round, step by step](01_one_round.ipynb).
