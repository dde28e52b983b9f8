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
# # One round, step by step
#
# [![Open in Colab][badge]][colab]
#
# A round guesses a tree, checks all of it in one pass of the target, and keeps
# a path. Here the pieces of `specjax/decode/round.py` are called one by one.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/01_one_round.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import jax
import matplotlib.pyplot as plt

import specjax
from experiments.figures.tree import draw
from specjax import tree_ops
from specjax.decode import round as round_lib
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.inputs import make_rows

decoder = specjax.load(method='ddtree', nodes=17)
method, params = decoder.method, decoder.params
print(type(method.drafter).__name__, method.tree, method.verify, sep='\n')

# %% [markdown]
# A method is a drafter, a tree and a verifier: static objects without arrays.
# All that changes is in a state, which the prompt makes.

# %%
prompt = 'A robe takes 2 bolts of blue fiber and half that much white.\n'
NEW = 64
ids = decoder.encode(prompt)
rows = make_rows(
  [ids],
  vocab=decoder.config.vocab,
  max_length=decoder.config.max_length,
  max_new_tokens=NEW,
)
state = prefill(
  method,
  params,
  *rows.arrays(bucket_for(len(ids))),
  capacity=capacity_for(method, len(ids), NEW),
)


def text_of(state):
  length = int(state.context.length_B[0])
  return decoder.tokenizer.decode(state.context.tokens_BT[0, :length].tolist())


print(repr(text_of(state)))

# %% [markdown]
# **1. Draft.** One pass of the drafter gives a distribution per depth; the 16
# likeliest prefixes become a tree below the last token.

# %%
draft = jax.jit(round_lib.draft, static_argnums=0)
verify = jax.jit(round_lib.verify, static_argnums=0)
commit = jax.jit(round_lib.commit, static_argnums=0)

round = round_lib.open_round(method, params, state)
tree, scratch = draft(method, params, state, round)
tree_ops.check(tree)  # parents stand before children, siblings differ, ...
print('tokens ', tree.token_BN[0])
print('parents', tree.parent_BN[0])

# %% [markdown]
# **2. Verify.** One pass of the target over all nodes, each of which sees its
# own ancestors only. The verifier draws the target's token at every node and
# walks down while a child holds it.

# %%
out, logits_BNV, verdict = verify(method, params, state, tree, round)
print('path  ', verdict.path_BP[0])
print('length', verdict.length_B[0], '(the root counts)')
print('bonus ', repr(decoder.tokenizer.decode(verdict.bonus_B.tolist())))


# %%
figure, axes = plt.subplots(figsize=(9, 7), layout='constrained')
draw(axes, tree, verdict, lambda token: repr(decoder.tokenizer.decode([token])))
axes.set_title('A round: probabilities of prefixes by the drafter')
plt.show()

# %% [markdown]
# **3. Commit.** Both caches get the rows of the accepted path alone: a refused
# draft leaves nothing behind.

# %%
checked = round_lib.along(tree, out, logits_BNV, verdict)
before = text_of(state)
state = commit(method, params, state, scratch, checked)
print(repr(text_of(state)[len(before) :]), 'was committed')

# %% [markdown]
# **And again.** The loop does this on the device until every row is done. By
# hand it gives the text of plain decoding, too.

# %%
walks = [int(verdict.length_B[0])]
while not bool(state.done_B[0]):
  round = round_lib.open_round(method, params, state)
  tree, scratch = draft(method, params, state, round)
  out, logits_BNV, verdict = verify(method, params, state, tree, round)
  checked = round_lib.along(tree, out, logits_BNV, verdict)
  state = commit(method, params, state, scratch, checked)
  walks.append(int(verdict.length_B[0]))

want = specjax.load(method='ar').generate(prompt, max_new_tokens=NEW)
assert text_of(state) == prompt + want.text[0]
print(f'{want.stats.rounds} rounds plain, {len(walks)} with trees: {walks}')
