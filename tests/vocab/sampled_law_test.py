"""Sampled drafts from a cut vocabulary leave the target's law alone.

The whole loop is sampled with one key per row and held to the exact law of
three tokens by chi-square. The list leaves out the likeliest token of the first
place, so that the residual's mass outside the list is needed at once.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from specjax import sampling
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.drafters.draft_model import DraftModel
from specjax.method import Method
from specjax.models import config, transformer
from specjax.models.layers import unembed
from specjax.trees.chain import Chain
from specjax.types import Params, Sampling
from specjax.verify.rejection import Rejection
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec

pytestmark = pytest.mark.usefixtures('quick_compiles')

V, NEW, ROWS, BATCHES = 5, 3, 4000, 6
PROMPT = (1, 2, 3)
CONFIG = config.tiny(
  vocab=V, width=16, layers=1, q_heads=2, kv_heads=1, head_dim=8, mlp=16
)


def weights(seed):
  return transformer.init(CONFIG, jax.random.key(seed), scale=0.4)


PARAMS = Params(target=weights(0), drafter=weights(1))
PLAIN = Method(
  name='drawn',
  drafter=DraftModel(config=CONFIG),
  tree=Chain(depth=3, sampled=True),
  verify=Rejection(),
)


def exact_law():
  """float64[V, V, V] after the prompt, from one pass over all texts."""
  tails = np.array(list(itertools.product(range(V), repeat=NEW)))
  token_BT = jnp.asarray(np.c_[np.tile(PROMPT, (len(tails), 1)), tails])
  b = len(tails)
  out = transformer.read(PARAMS.target, token_BT)
  logits_BTV = unembed(out.hidden_BTD, PARAMS.target.head)
  p_BTV = np.asarray(jax.nn.softmax(logits_BTV), np.float64)
  first = len(PROMPT) - 1
  each = [p_BTV[np.arange(b), first + i, tails[:, i]] for i in range(NEW)]
  law = np.prod(each, axis=0)
  return (law / law.sum()).reshape(V, V, V)


LAW = exact_law()
# Tokens 2 and 3 are drafted; the likeliest second token has no row.
LEFT_OUT = int(LAW.sum((0, 2)).argmax())
IDS = [i for i in range(V) if i != LEFT_OUT][:3]


def counted(method, params):
  """int[V^3] of the texts of all rows."""
  total = np.zeros(V**NEW, np.int64)
  ones = jnp.ones(ROWS)
  law = Sampling(
    temperature_B=ones,
    top_k_B=jnp.zeros(ROWS, jnp.int32),
    top_p_B=ones,
    min_p_B=0 * ones,
    filtering=False,
  )
  length_B = jnp.full(ROWS, len(PROMPT), jnp.int32)
  for batch in range(BATCHES):
    state = prefill(
      method,
      params,
      jnp.tile(jnp.asarray([PROMPT]), (ROWS, 1)),
      length_B,
      jax.random.split(jax.random.fold_in(jax.random.key(3), batch), ROWS),
      law,
      jnp.full((ROWS, 1), -1),
      length_B + NEW,
      capacity=16,
    )
    state, _ = decode(method, params, state)
    text_BT = np.asarray(state.context.tokens_BT)[:, len(PROMPT) :][:, :NEW]
    total += np.bincount(text_BT @ V ** np.arange(NEW)[::-1], minlength=V**NEW)
  return total


def p_value(counts):
  expected = counts.sum() * LAW.reshape(-1)
  rare = expected < 5
  merge = lambda x: np.append(x[~rare], x[rare].sum())
  return scipy.stats.chisquare(merge(counts), merge(expected)).pvalue


@dataclasses.dataclass(frozen=True, kw_only=True)
class InsideOnly:
  """Rejection that pays the residual in listed tokens only."""

  lossless: bool = False

  def __call__(self, tree, logits_BNV, round):
    verdict = Rejection()(tree, logits_BNV, round)
    at_B = verdict.length_B - 1
    logits_BV = jax.vmap(lambda x, i: x[i])(logits_BNV, at_B)
    noise_BV = sampling.noise(
      round.key_B, round.context.length_B + at_B, 1, V, 9
    )[:, 0]
    listed_V = jnp.isin(jnp.arange(V), jnp.asarray(IDS))
    inside_B = jnp.argmax(
      jnp.where(listed_V, logits_BV + noise_BV, -jnp.inf), axis=-1
    ).astype(jnp.int32)
    rejected_B = verdict.length_B < tree.path_rows
    return verdict.replace(
      bonus_B=jnp.where(rejected_B, inside_B, verdict.bonus_B)
    )


VOCABS = {
  'static': FrSpec(ranks=IDS),
  'evolving': EvoSpec(ranks=IDS[:2], buffer=2),
}


@pytest.mark.parametrize('name', VOCABS)
def test_the_law_is_the_targets(name):
  """With a list, and with a buffer that depends on what was drawn before."""
  method, params = VOCABS[name].wrap(PLAIN, PARAMS)
  assert p_value(counted(method, params)) > 1e-6


def test_a_residual_inside_the_list_is_found():
  """Power: the same harness must reject it."""
  method, params = VOCABS['static'].wrap(PLAIN, PARAMS)
  wrong = dataclasses.replace(method, verify=InsideOnly())
  assert p_value(counted(wrong, params)) < 1e-12
