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
# # Your own method in 40 lines
#
# [![Open in Colab][badge]][colab]
#
# A method is a drafter, a tree and a verifier. Here a new drafter: what
# followed the last tokens earlier in the text, counted along every path of a
# tree. It needs no weights, so it runs with any target.
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/05_your_method.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import dataclasses

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import specjax
from specjax.method import Method
from specjax.trees.best_first import BestFirst
from specjax.trees.chain import Chain
from specjax.types import Candidates
from specjax.verify.follow import Follow


# %%
@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
  """Proposes what followed the last tokens; a longer match counts more."""

  order: int = 4
  fanout: int = 8
  taps: tuple[int, ...] = ()  # reads nothing of the target
  shared_rows: bool = False  # what may come depends on the path
  max_depth: int | None = None

  init = lambda self, key, target_config: ()
  tensors = lambda self: []
  head = lambda self, params, target: None
  start = lambda self, params, target, batch, capacity: ()
  commit = lambda self, params, target, state, scratch, accepted: ()

  def begin(self, params, target, state, round, ask):
    text = round.context
    at_BK = text.length_B[:, None] - 1 - jnp.arange(self.order)
    last_BK = jnp.take_along_axis(text.tokens_BT, jnp.maximum(at_BK, 0), axis=1)
    return self.after(target, text, last_BK[:, None])

  def expand(self, params, target, scratch, frontier):
    text, last_BWK = scratch
    last_BWK = jnp.take_along_axis(last_BWK, frontier.row_BW[..., None], axis=1)
    new_BW1 = frontier.token_BW[..., None]
    last_BWK = jnp.concatenate([new_BW1, last_BWK[..., :-1]], axis=-1)
    return self.after(target, text, last_BWK)

  def after(self, target, text, last_BWK):  # a node's last tokens, latest first
    tokens_BT, next_BT = text.tokens_BT, jnp.roll(text.tokens_BT, -1, axis=1)
    known_BT = jnp.arange(tokens_BT.shape[1]) < text.length_B[:, None] - 1
    match_BWT, weight_BWT = known_BT[:, None], 0.0
    for back in range(self.order):
      there_BT = jnp.roll(tokens_BT, back, axis=1)
      match_BWT &= there_BT[:, None] == last_BWK[..., back, None]
      weight_BWT += 10.0**back * match_BWT
    zero_WV = jnp.zeros((last_BWK.shape[1], target.config.vocab))
    count = lambda next_T, weight_WT: zero_WV.at[:, next_T].add(weight_WT)
    count_BWV = jax.vmap(count)(next_BT, weight_BWT)
    law_BWV = count_BWV / jnp.maximum(jnp.sum(count_BWV, -1, keepdims=True), 1)
    logq_BWC, token_BWC = jax.lax.top_k(jnp.log(law_BWV), self.fanout)
    return Candidates(token_BWC, logq_BWC), (text, last_BWK)


# %% [markdown]
# What passes from `begin` to `expand` is the scratch of a round: the text, and
# the last tokens of every node. A score of -inf is no candidate.
#
# The tree and the verifier are there already. `specjax.load` takes a build
# function; in a file `specjax/methods/counts.py`, `method='counts'` finds it.


# %%
def build(target_config=None, drafter_config=None, *, nodes=17, depth=8):
  drafter = Counts()
  tree = BestFirst(
    nodes=nodes, depth=depth, fanout=drafter.fanout, shared_rows=False
  )
  return Method(name='counts', drafter=drafter, tree=tree, verify=Follow())


# %% [markdown]
# **Is it lossless?** Three rows, greedy and sampled, must have the tokens of
# plain decoding with the same seeds.

# %%
PROMPTS = [
  'Tom has 3 red pens and 3 blue pens. How many pens does Tom have?\n',
  'A robe takes 2 bolts of blue fiber and half that much white.\n',
  'Two trains leave.\n',
]
ASK = dict(max_new_tokens=64, temperature=[0.0, 0.7, 1.0], seed=5)
want = specjax.load(method='ar').generate(PROMPTS, **ASK)


def lossless(method):
  out = specjax.load(method=method).generate(PROMPTS, **ASK)
  return out.tokens == want.tokens, out


same, out = lossless(build)
assert same
print(f'{out.stats.mean_accepted:.2f} tokens per round, texts equal')

# %% [markdown]
# A check that cannot fail says nothing. This verifier keeps a draft if it is
# one of the target's two best tokens: more is accepted, and texts change.


# %%
class TopTwo(Follow):
  def __call__(self, tree, logits_BNV, round):
    _, best_BN2 = jax.lax.top_k(logits_BNV, 2)
    drafted_BP = tree.token_BN[:, 1:]  # of a chain: node n + 1 follows n
    hit_BP = jnp.any(best_BN2[:, :-1] == drafted_BP[..., None], axis=-1)
    hit_BP &= tree.valid_BN[:, 1:]
    drafts_B = jnp.sum(jnp.cumprod(hit_BP, axis=1), axis=1)
    rows_P = jnp.arange(tree.token_BN.shape[1])
    path_BP = jnp.where(rows_P <= drafts_B[:, None], rows_P, -1)
    verdict = super().__call__(tree, logits_BNV, round)
    end_B11 = drafts_B[:, None, None]
    bonus_B = jnp.take_along_axis(best_BN2, end_B11, axis=1)[:, 0, 0]
    return verdict.replace(
      path_BP=path_BP, length_B=drafts_B + 1, bonus_B=bonus_B
    )


chain = dataclasses.replace(build(), tree=Chain(depth=8), verify=TopTwo())
same, wrong = lossless(chain)
assert not same
print(f'{wrong.stats.mean_accepted:.2f} tokens per round, texts differ')

# %% [markdown]
# **Does it help?** Against prompt lookup, which copies one continuation.

# %%
ROWS = {'greedy': 0, 'T=0.7': 1, 'T=1': 2}
lookup = specjax.load(method='lookup', nodes=17).generate(PROMPTS, **ASK)
figure, axes = plt.subplots(figsize=(5, 3), layout='constrained')
for shift, (name, got) in enumerate({'lookup': lookup, 'counts': out}.items()):
  means = [sum(got.accepted[i]) / got.rounds[i] for i in ROWS.values()]
  axes.bar([i + 0.4 * shift for i in ROWS.values()], means, 0.4, label=name)
axes.set_xticks([i + 0.2 for i in ROWS.values()], list(ROWS))
axes.set_ylabel('tokens per round')
axes.legend()
plt.show()
print(f'lookup {lookup.stats.mean_accepted:.2f}')
print(f'counts {out.stats.mean_accepted:.2f}')

# %% [markdown]
# In a file it is also run through the whole battery (`pytest
# tests/conformance_test.py -k counts`): batches, caches, one compilation, and
# states that come back from disk. See [CONTRIBUTING](../CONTRIBUTING.md).
