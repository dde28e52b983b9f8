"""Rounds that take one of several sizes of tree.

The costs of the fixture make each size pay at some length of a text.
"""

import dataclasses

import conformance_checks as checks
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax import tree_ops
from specjax.decode.loop import decode
from specjax.method import SizedTree
from specjax.methods import caddtree, ddtree

pytestmark = pytest.mark.usefixtures('quick_compiles')

TABLE = fx.OPTIONS['caddtree']['latency']
LAWS = (checks.GREEDY, checks.SAMPLED[1])


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


@pytest.fixture(scope='module')
def case():
  return fx.make_case('caddtree')


def built(build, **options):
  """A method of the fixture's DFlash."""
  config = next(
    c
    for c in fx.drafter_configs(fx.CONFIG)
    if c['architectures'] == ['DFlashDraftModel']
  )
  return fx.case_of(build(fx.CONFIG, config, **options))


def costing(*verify_ms, sizes=TABLE.sizes):
  """A table with these costs at every length."""
  return dataclasses.replace(
    TABLE, contexts=(1,), sizes=sizes, verify_ms=(verify_ms,)
  )


def seen(tree, logits_BNV, verdict):
  """An observer: the tree, the rows the target saw, and what was kept."""
  rows_BN = jnp.any(logits_BNV != 0, axis=-1)
  return tree, rows_BN, verdict


def observed(case, rows, *, state=None):
  """(outcome, records on the host) of a run to the end."""
  state = fx.start(case, rows) if state is None else state
  state, records = decode(
    case.method, case.params, state, max_rounds=30, observe=seen
  )
  assert bool(jnp.all(state.done_B))
  count = int(records.count)
  values = jax.tree.map(lambda x: np.asarray(x)[:count], records.values)
  return fx.outcome(state, rows), values


class TestTexts:
  @pytest.mark.parametrize('law', LAWS, ids=['greedy', 'sampled'])
  @pytest.mark.parametrize('batch', [1, 3])
  def test_texts_are_plain_while_sizes_change(self, case, plain, law, batch):
    """Catches a branch whose path, cache rows or taps are another size's; and
    records in which the sizes never changed."""
    rows = fx.rows_of(**law).part(0, batch)
    got, (_, rows_RBN, _) = observed(case, rows)
    want = fx.run(plain, rows).texts
    checks.assert_same_texts(got.texts, want, rows, str(law))
    sizes_RB = rows_RBN.sum(-1)
    assert set(sizes_RB.ravel()) == set(TABLE.sizes)
    assert np.all(sizes_RB == sizes_RB[:, :1])  # one for the batch
    assert max(map(max, got.walks)) > 1

  @pytest.mark.parametrize('law', LAWS, ids=['greedy', 'sampled'])
  def test_observers_see_what_was_verified(self, case, law):
    """Padded to the largest size: catches nodes that the target never saw, and
    logits that stand at other rows than their nodes."""
    _, (tree, rows_RBN, verdict) = observed(case, fx.rows_of(**law))
    assert tree.token_BN.shape[-1] == case.method.tree.nodes
    assert not np.any(tree.valid_BN & ~rows_RBN)
    sizes_RB = rows_RBN.sum(-1)
    index_N = np.arange(case.method.tree.nodes)
    np.testing.assert_array_equal(rows_RBN, index_N < sizes_RB[..., None])
    assert np.all(verdict.path_BP < sizes_RB[..., None])
    for r in range(len(sizes_RB)):
      tree_ops.check(jax.tree.map(lambda x, r=r: x[r], tree))


class TestChoice:
  @pytest.mark.parametrize('law', LAWS, ids=['greedy', 'sampled'])
  def test_one_size_is_ddtree(self, law):
    """Walks and texts: a tree of the same budget, verified the same."""
    sized = built(caddtree.build, latency=TABLE, sizes=(10,))
    rows = fx.rows_of(**law)
    got, want = fx.run(sized, rows), fx.run(built(ddtree.build, nodes=10), rows)
    assert got.texts == want.texts and got.walks == want.walks
    assert max(map(max, got.walks)) > 1

  def test_dear_rows_leave_the_root_alone(self, plain):
    """One token a round, and not none: the bonus needs no draft."""
    dear = built(caddtree.build, latency=costing(1.0, 50.0, 90.0))
    rows = fx.rows_of()
    got, (_, rows_RBN, _) = observed(dear, rows)
    assert set(rows_RBN.sum(-1).ravel()) == {1}
    assert got.walks == [[1] * 23] * 3
    assert got.texts == fx.run(plain, rows).texts

  def test_a_finished_row_does_not_decide(self, case):
    """With its neighbours done, a row takes the sizes that it takes alone.

    Fails if lengths or scores of rows that are done count: the second row's
    prompt is the longest.
    """
    rows = fx.rows_of()
    state = fx.start(case, rows)
    state = state.replace(done_B=jnp.asarray([False, True, True]))
    _, (_, among_RBN, _) = observed(case, rows, state=state)
    _, (_, alone_RBN, _) = observed(case, rows.part(0, 1))
    sizes = lambda rows_RBN: rows_RBN[:, 0].sum(-1).tolist()
    assert sizes(among_RBN) == sizes(alone_RBN)
    assert set(sizes(alone_RBN)) == set(TABLE.sizes)


class TestBuild:
  def test_a_table_is_needed_and_must_fit(self):
    with pytest.raises(ValueError, match=r'python -m experiments.profile'):
      built(caddtree.build)
    other = dataclasses.replace(TABLE, device='TPU v9')
    with pytest.raises(ValueError, match="'TPU v9' and not"):
      built(caddtree.build, latency=other)
    other = dataclasses.replace(TABLE, dtype='bfloat16')
    with pytest.raises(ValueError, match='bfloat16 and not float32'):
      built(caddtree.build, latency=other)  # found by `bind`

  @pytest.mark.parametrize(
    ('options', 'sizes'),
    [
      ({}, (1, 4, 10)),
      ({'nodes': 4}, (1, 4)),
      ({'sizes': [10, 4]}, (4, 10)),
      ({'sizes': (1, 10), 'nodes': 4}, (1, 4)),
      ({'nodes': 1}, (1,)),
    ],
  )
  def test_nodes_are_the_largest_size(self, options, sizes):
    tree = built(caddtree.build, latency=TABLE, **options).method.tree
    assert tree.sizes == sizes and tree.nodes == sizes[-1]
    assert isinstance(tree, SizedTree)

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'nodes': 7}, r'no cost of \[7\]'),
      ({'sizes': ()}, 'sizes are empty'),
      ({'sizes': 5}, 'sizes are 5; give a list'),
      ({'sizes': '14'}, "sizes are '14'; give a list"),
      ({'sizes': [1, 4.0]}, 'give a list of whole numbers'),
      ({'nodes': 0}, r'nodes is 0'),
    ],
  )
  def test_sizes_that_cannot_be(self, options, message):
    with pytest.raises(ValueError, match=message):
      built(caddtree.build, latency=TABLE, **options)
