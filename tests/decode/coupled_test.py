"""Coupled drafting: the noise of the right position, and no other effect.

A noise row off by one changes no text, only acceptance. The tell-tale: with the
target as its own drafter, every draft is the target's own draw.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax import candidates
from specjax.decode.round import open_round
from specjax.method import Method, sharpness_of
from specjax.methods import ddtree, dflash, draft_model, treeflash
from specjax.models.config import to_hf
from specjax.trees.best_first import BestFirst
from specjax.types import Ask, Frontier, Head, Params
from specjax.verify.follow import Follow

pytestmark = pytest.mark.usefixtures('quick_compiles')

# Drafts are warped by the temperature alone, so these laws cut nothing.
LAWS = ({'temperature': 1.0}, {'temperature': 0.6})
OWN = to_hf(fx.CONFIG)


def itself(method: Method) -> fx.Case:
  """The target as its own drafter."""
  return fx.Case(method, Params(target=fx.WEIGHTS, drafter=fx.WEIGHTS))


def own_chain(**options) -> fx.Case:
  return itself(draft_model.build(fx.CONFIG, OWN, nodes=5, **options))


def own_tree() -> fx.Case:
  # So sharp that the likeliest path is always among the nodes.
  method = own_chain(rule='follow', coupled=0.02).method
  tree = BestFirst(nodes=9, depth=3, fanout=4, shared_rows=False)
  return itself(dataclasses.replace(method, tree=tree, verify=Follow()))


class TestTellTale:
  @pytest.mark.parametrize('law', LAWS, ids=str)
  def test_its_own_drafts_are_all_accepted(self, law):
    """Noise, temperature and position are the verifier's in every row."""
    rows = fx.rows_of(new=33, **law)  # the prefill's token and 8 rounds of 4
    case = own_chain(rule='follow', coupled=True)
    walks = fx.run(case, rows).walks
    full = case.method.path_rows
    assert all(n == full for walk in walks for n in walk), walks

  def test_every_path_of_a_tree_is_found(self):
    walks = fx.run(own_tree(), fx.rows_of(new=33, temperature=1.0)).walks
    assert all(n == 4 for walk in walks for n in walk), walks

  def test_uncoupled_drafts_are_not(self):
    """The tell-tale says something: without the noise most drafts fall."""
    rows = fx.rows_of(new=33, temperature=1.0)
    case = own_chain(rule='follow', coupled=False)
    walks = [n for walk in fx.run(case, rows).walks for n in walk]
    assert np.mean(walks) < case.method.path_rows - 1

  def test_the_wrong_row_is_seen(self, monkeypatch):
    """Noise one position late, and acceptance falls."""
    right = candidates._coupled
    late = lambda logits, head, round, depth: right(
      logits, head, round, np.asarray(depth) + 1
    )
    monkeypatch.setattr(candidates, '_coupled', late)
    rows = fx.rows_of(new=33, temperature=1.0, seed=12)
    # Another sharpness: a program that no other test compiled.
    case = own_chain(rule='follow', coupled=0.9)
    walks = [n for walk in fx.run(case, rows).walks for n in walk]
    assert min(walks) < case.method.path_rows


BUILDS = {
  'dflash': lambda config, c: dflash.build(fx.CONFIG, config, coupled=c),
  'ddtree': lambda config, c: ddtree.build(
    fx.CONFIG, config, nodes=9, coupled=c
  ),
  'treeflash': lambda config, c: treeflash.build(
    fx.CONFIG, config, nodes=9, plain=4, fanout=4, coupled=c
  ),
}


@pytest.mark.parametrize('name', BUILDS)
def test_no_text_changes(name):
  """Whatever the sharpness, sampled texts are those of uncoupled drafts."""
  config = next(
    c
    for c in fx.drafter_configs(fx.CONFIG)
    if c['architectures'] == ['DFlashDraftModel']
  )
  rows = fx.rows_of(temperature=[1.0, 0.7, 0.0], top_p=[1.0, 0.9, 1.0])
  plain = fx.run(fx.case_of(BUILDS[name](config, False)), rows)
  for coupled in (True, (0.5, 2.0)):
    got = fx.run(fx.case_of(BUILDS[name](config, coupled)), rows)
    assert got.texts == plain.texts
    # The third row is greedy: there is no noise to look at.
    assert got.walks[2] == plain.walks[2]
    assert got.walks[:2] != plain.walks[:2]


class TestScores:
  """The formula, row by row, against numpy in float64."""

  def candidates(self, sharpness, head=None, features=False, **law):
    case = own_chain(rule='follow', coupled=sharpness)
    state = fx.start(case, fx.rows_of(**law))
    round = open_round(case.method, case.params, state)
    key = jax.random.key(3)
    hidden_BWD = jax.random.normal(key, (3, 2, fx.CONFIG.width))
    head = Head(fx.WEIGHTS.head) if head is None else head
    got = candidates.top_candidates(
      hidden_BWD, head, round, 4, (0, 2), features=features
    )
    logits = np.asarray(hidden_BWD, np.float64) @ np.asarray(head.rows_VD).T
    return got, logits, np.asarray(round.noise_BPV, np.float64)[:, [0, 2]]

  def expected(self, score_BWV):
    top = score_BWV - score_BWV.max(-1, keepdims=True)
    logp = top - np.log(np.exp(top).sum(-1, keepdims=True))
    order = np.argsort(-logp, axis=-1, kind='stable')[..., :4]
    return order, np.take_along_axis(logp, order, -1)

  def test_each_depth_has_its_sharpness_and_noise(self):
    got, logits, noise = self.candidates(
      (0.5, 9.0, 2.0), temperature=[0.6, 1.0, 1.3]
    )
    heat = np.array([0.6, 1.0, 1.3])[:, None, None]
    sharp = np.array([0.5, 2.0])[:, None]
    order, logq = self.expected((logits + heat * noise) / sharp)
    np.testing.assert_array_equal(got.token_BWC, order)
    np.testing.assert_allclose(got.logq_BWC, logq, atol=2e-4)

  def test_what_a_learned_tree_reads_is_plain(self):
    """Catches features of the coupled law, or of tokens in another order."""
    got, logits, _ = self.candidates((0.5,), features=True, temperature=1.0)
    top = logits - logits.max(-1, keepdims=True)
    plain = top - np.log(np.exp(top).sum(-1, keepdims=True))
    want = np.take_along_axis(plain, np.asarray(got.token_BWC), -1)
    np.testing.assert_allclose(got.features.logq_BWC, want, atol=2e-4)
    entropy = -(np.exp(plain) * plain).sum(-1)
    np.testing.assert_allclose(got.features.entropy_BW, entropy, atol=2e-4)
    assert not np.allclose(got.logq_BWC, want, atol=0.1)

  def test_a_greedy_row_has_plain_scores(self):
    got, logits, _ = self.candidates((0.5,), temperature=[0.0, 1.0, 1.0])
    order, logq = self.expected(logits)
    np.testing.assert_array_equal(got.token_BWC[0], order[0])
    np.testing.assert_allclose(got.logq_BWC[0], logq[0], atol=2e-4)

  def test_a_cut_head_gathers_its_noise(self):
    """Rows of a smaller vocabulary see the noise of their own tokens."""
    ids = jnp.asarray([1, 4, 9, 11, 15], jnp.int32)
    head = Head(fx.WEIGHTS.head[ids], ids)
    got, logits, noise = self.candidates((1.0,), head, temperature=1.0)
    order, logq = self.expected(logits + noise[..., ids])
    np.testing.assert_array_equal(got.token_BWC, np.asarray(ids)[order])
    np.testing.assert_allclose(got.logq_BWC, logq, atol=2e-4)


def laws_of(name, coupled):
  """(round, log-probabilities [B, depth, V] by token) along a fixed path.

  All candidates are asked for, so that rows do not depend on who is best.
  """
  config = next(c for c in fx.drafter_configs(fx.CONFIG) if fits(name, c))
  options = {'eagle3': {'nodes': 5, 'depth': 4, 'width': 1}, 'ddtree': {}}
  options['treeflash'] = {'plain': fx.CONFIG.vocab}
  case = fx.built(
    name,
    config | {'draft_vocab_size': None},
    coupled=coupled,
    **{'nodes': 5} | options[name],
  )
  rows = fx.rows_of(temperature=[1.0, 0.6, 1.3])
  state = fx.start(case, rows)
  round = open_round(case.method, case.params, state)
  drafter, params = case.method.drafter, case.params
  part = params.drafter, params.target
  ask = Ask(depth=4, fanout=fx.CONFIG.vocab)
  found, scratch = drafter.begin(*part, state.draft, round, ask)
  laws = [found]
  for depth in (1, 2, 3):
    token_B1 = jnp.full((len(rows), 1), depth + 2, jnp.int32)
    frontier = Frontier(token_B1, jnp.zeros_like(token_B1), depth=depth)
    found, scratch = drafter.expand(*part, scratch, frontier)
    laws.append(found)
  by_token = [
    np.take_along_axis(law.logq_BWC, np.argsort(law.token_BWC, -1), -1)[:, 0]
    for law in laws
  ]
  return round, np.stack(by_token, 1)


def fits(name, config):
  wanted = {'eagle3': 'LlamaForCausalLMEagle3', 'ddtree': 'DFlashDraftModel'}
  wanted['treeflash'] = 'TreeFlashDraftModel'
  return config['architectures'] == [wanted[name]]


@pytest.mark.parametrize('name', ['ddtree', 'treeflash', 'eagle3'])
def test_each_depth_of_a_drafter_sees_its_own_noise(name):
  """Catches a drafter that names the wrong depth to the candidates.

  The target cannot stand in for these drafters: so their plain laws, coupled
  here by hand, against what they give when coupled.
  """
  _, plain = laws_of(name, False)
  round, got = laws_of(name, (1.0, 0.5, 2.0))
  heat = np.array([1.0, 0.6, 1.3])[:, None, None]
  sharp = np.array([1.0, 0.5, 2.0, 2.0])[:, None]
  want = (plain + heat * np.asarray(round.noise_BPV)[:, :4]) / sharp
  want = jax.nn.log_softmax(want, axis=-1)
  np.testing.assert_allclose(got, want, atol=2e-3)


def test_treeflash_keeps_tokens_by_the_noise_of_their_own_position():
  """Catches previous tokens picked with another row: their laws are then those
  of tokens that no node has, and every node below the first is a leaf."""
  config = next(
    c for c in fx.drafter_configs(fx.CONFIG) if fits('treeflash', c)
  )
  case = fx.built('treeflash', config, nodes=5, plain=3, coupled=True)
  state = fx.start(case, fx.rows_of(temperature=[1.0, 0.6, 1.3]))
  round = open_round(case.method, case.params, state)
  drafter, params = case.method.drafter, case.params
  _, tables = drafter.begin(
    params.drafter, params.target, state.draft, round, Ask(depth=4, fanout=2)
  )
  hidden = drafter.backbone.hidden(
    params.drafter.backbone, params.target, state.draft, round.context
  )
  logits = np.asarray(hidden.normed_BTD)[:, :3] @ np.asarray(fx.WEIGHTS.head).T
  heat = np.array([1.0, 0.6, 1.3])[:, None, None]
  seen = logits + heat * np.asarray(round.noise_BPV)[:, :3]
  np.testing.assert_array_equal(
    tables.parent_BTM, np.argsort(-seen, axis=-1)[..., :3]
  )


class TestSettings:
  def test_sampled_drafts_cannot_be_coupled(self):
    with pytest.raises(ValueError, match="rule='follow'"):
      own_chain(rule='rejection', coupled=True)

  @pytest.mark.parametrize(
    'bad',
    [0.0, (), (1.0, -1.0), math.inf, math.nan, 'yes', '1', [1, 'a'], {'a': 1}],
    ids=str,
  )
  def test_sharpness_is_positive(self, bad):
    """Catches what float() takes or words badly, and scores that are flat."""
    with pytest.raises(ValueError, match=r'coupled is .*above 0'):
      own_chain(rule='follow', coupled=bad)

  def test_no_such_rule(self):
    with pytest.raises(ValueError, match='follow, rejection'):
      own_chain(rule='typical')

  def test_what_coupled_may_be(self):
    assert sharpness_of(False) is None
    assert sharpness_of(2) == (2.0,)
    assert sharpness_of((1, 2.5)) == (1.0, 2.5)
    assert sharpness_of(np.array([1, 2.5])) == (1.0, 2.5)
    assert sharpness_of(np.float32(2)) == (2.0,)
    assert sharpness_of(np.False_) is None
