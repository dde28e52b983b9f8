# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---
# %% [markdown]
# # Quickstart
#
# Decode with a draft tree, see that the text is the one plain decoding gives,
# and look at one round. Everything runs offline on the packaged byte model.

# %%
import jax

import specjax
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.inputs import make_rows

prompt = 'A robe takes 2 bolts of blue fiber and half that much white.\n'
plain = specjax.load(method='ar')
trees = specjax.load(method='ddtree', nodes=17)

# %% [markdown]
# The same text in fewer passes of the target, greedy and sampled.

# %%
for temperature in (0.0, 1.0):
  ask = dict(max_new_tokens=64, temperature=temperature, seed=0)
  want = plain.generate(prompt, **ask)
  got = trees.generate(prompt, **ask)
  assert got.text == want.text
  print(f'T={temperature}: {got.text[0]!r}')
  print(f'  {want.stats.rounds} rounds plain, {got.stats.rounds} with a tree')

# %% [markdown]
# One round: `observe` brings out the tree, and which path was accepted.

# %%
ids = trees.encode(prompt)
rows = make_rows(
  [ids],
  vocab=trees.config.vocab,
  max_length=trees.config.max_length,
  max_new_tokens=64,
)
state = prefill(
  trees.method,
  trees.params,
  *rows.arrays(bucket_for(len(ids))),
  capacity=capacity_for(trees.method, len(ids), 64),
)


def keep_tree(tree, logits_BNV, verdict):
  return tree, verdict


state, records = decode(
  trees.method, trees.params, state, max_rounds=1, observe=keep_tree
)
tree, verdict = jax.tree.map(lambda x: x[0, 0], jax.device_get(records.values))
path = set(verdict.path_BP[: verdict.length_B].tolist())
for node, (token, parent, depth) in enumerate(
  zip(tree.token_BN, tree.parent_BN, tree.depth_BN, strict=True)
):
  mark = '*' if node in path else ' '
  text = trees.tokenizer.decode([int(token)])
  print(f'{mark} {"  " * int(depth)}{text!r}  (node {node} under {parent})')
