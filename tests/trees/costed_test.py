"""Which size a costed tree takes, and the table it decides by."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from best_first_test import CASES, grow, laws, round_of, tree_of

from specjax.models import transformer
from specjax.models.config import tiny
from specjax.trees.best_first import BestFirst
from specjax.trees.costed import Costed, LatencyTable, target_sizes
from specjax.types import TokenTree

pytestmark = pytest.mark.usefixtures('quick_compiles')

CONFIG = tiny()


def table_of(verify_ms, *, contexts=(64,), sizes=None, draft_ms=1.0, **more):
  """A table of this device; `verify_ms` is [context][size]."""
  sizes = range(1, len(verify_ms[0]) + 1) if sizes is None else sizes
  return LatencyTable(
    contexts=tuple(contexts),
    sizes=tuple(sizes),
    verify_ms=tuple(tuple(map(float, row)) for row in verify_ms),
    draft_ms=draft_ms,
    **{
      'device': jax.devices()[0].device_kind,
      'dtype': 'float32',
      'target': target_sizes(CONFIG),
    }
    | more,
  )


def costed(table, sizes=None):
  sizes = table.sizes if sizes is None else sizes
  tree = BestFirst(nodes=sizes[-1], depth=4, fanout=8, shared_rows=True)
  return Costed(tree=tree, sizes=sizes, table=table)


def scored(chance_BW):
  """A tree whose nodes have these path probabilities; 0 is padding."""
  chance_BW = jnp.asarray(chance_BW, jnp.float32)
  chance_BN = jnp.pad(chance_BW, ((0, 0), (1, 0)), constant_values=1)
  zeros_BN = jnp.zeros(chance_BN.shape, jnp.int32)
  return TokenTree(
    token_BN=zeros_BN,
    parent_BN=zeros_BN,
    depth_BN=zeros_BN,
    valid_BN=chance_BN > 0,
    logq_BN=jnp.log(chance_BN),
    max_depth=4,
  )


def chosen(tree, chance_BW, lengths=None, alive=None):
  """The size that is taken."""
  round = round_of(len(chance_BW))
  if lengths is not None:
    context = round.context.replace(length_B=jnp.asarray(lengths))
    round = round.replace(context=context)
  if alive is not None:
    round = round.replace(alive_B=jnp.asarray(alive))
  return tree.sizes[int(tree.choose((), scored(chance_BW), round))]


def greedy_stop(chance_W, cost_N, draft):
  """Grows node by node until the rate falls: the reference's rule."""
  rate, expected, n = 1 / (draft + cost_N[0]), 1.0, 0
  for w in chance_W:
    after = (expected + w) / (draft + cost_N[n + 1])
    if after <= rate:
      break
    rate, expected, n = after, expected + w, n + 1
  return n + 1


@pytest.mark.parametrize('seed', range(20))
def test_argmax_is_the_greedy_stop_on_convex_costs(seed):
  """Catches costs read one row off, and the root's 1 forgotten or doubled."""
  rng = np.random.default_rng(seed)
  chance_W = np.sort(rng.random(24) ** 3)[::-1] * rng.choice([0.3, 1])
  slope_W = np.sort(rng.random(24)) * rng.choice([0.02, 0.3, 3])
  cost_N = 2 + np.concatenate([[0], np.cumsum(slope_W)])
  draft = float(rng.choice([0.2, 5]))
  tree = costed(table_of([cost_N], draft_ms=draft))
  assert chosen(tree, [chance_W]) == greedy_stop(chance_W, cost_N, draft)


def test_the_greedy_stop_varies():
  """The cases above stop at the root, in between and at the end."""
  assert greedy_stop([0.9, 0.8], [1, 1, 1], 1) == 3
  assert greedy_stop([0.9, 0.1], [1, 1.1, 2], 1) == 2
  assert greedy_stop([0.9, 0.8], [1, 9, 18], 1) == 1


def test_constant_and_steep_costs():
  """Free rows: all of them. Dear rows: the root alone."""
  chance = [[0.5**i for i in range(1, 9)]]
  sizes = (1, 3, 9)
  assert chosen(costed(table_of([[5] * 3], sizes=sizes)), chance) == 9
  steep = table_of([[1, 30, 90]], sizes=sizes)
  assert chosen(costed(steep), chance) == 1
  assert chosen(costed(steep, (3, 9)), chance) == 3


def test_equal_rates_take_the_fewest_rows():
  """Padding adds nothing: rows that are no nodes are not paid for."""
  tree = costed(table_of([[5] * 3], sizes=(1, 3, 9)))
  assert chosen(tree, [[0.5, 0.5] + [0] * 6]) == 3
  assert chosen(tree, [[0] * 8]) == 1


def test_more_rows_never_cost_less():
  """Catches a dip of noise that would draw every round to it."""
  tree = costed(table_of([[4, 8, 1]], sizes=(1, 3, 9)))
  cost_J = tree.table.costs(tree.sizes, jnp.int32(64))
  np.testing.assert_allclose(cost_J, [5, 9, 9])
  # The maximum counts sizes that are not on offer too.
  np.testing.assert_allclose(tree.table.costs((9,), jnp.int32(1)), [9])


def test_costs_between_contexts():
  """Linear between, clamped outside; catches swapped axes."""
  table = table_of([[1, 2], [3, 10]], contexts=(100, 200), draft_ms=0.5)
  for length, want in (
    (1, (1.5, 2.5)),
    (100, (1.5, 2.5)),
    (125, (2.0, 4.5)),
    (200, (3.5, 10.5)),
    (900, (3.5, 10.5)),
  ):
    got = table.costs((1, 2), jnp.int32(length))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_batch_takes_one_size_by_its_sum_and_its_longest():
  """Catches a first row that decides, a mean length, and a shortest one."""
  verify_ms = [[1, 1.2, 1.3], [1, 40, 80]]
  tree = costed(table_of(verify_ms, contexts=(10, 1000), sizes=(1, 3, 9)))
  sure, flat = [0.9] * 8, [1e-4] * 8
  assert chosen(tree, [sure, flat], [10, 10]) == 9
  assert chosen(tree, [flat, sure], [10, 10]) == 9
  assert chosen(tree, [flat, flat], [10, 10]) == 1
  assert chosen(tree, [sure, flat], [10, 1000]) == 1


def test_dead_rows_have_no_say():
  """Neither their scores nor their length, NaN included."""
  verify_ms = [[1, 1.2, 1.3], [1, 40, 80]]
  tree = costed(table_of(verify_ms, contexts=(10, 1000), sizes=(1, 3, 9)))
  sure, flat = [0.9] * 8, [1e-4] * 8
  for dead, length in ((sure, 10), (flat, 1000), ([np.nan] * 8, 10)):
    got = chosen(tree, [flat, dead], [10, length], [True, False])
    assert got == chosen(tree, [flat], [10]) == 1
    got = chosen(tree, [sure, dead], [10, length], [True, False])
    assert got == chosen(tree, [sure], [10]) == 9


@pytest.mark.parametrize('case', CASES)
def test_the_first_rows_are_the_best_tree_of_so_many(case):
  """Node by node what a smaller budget grows, ties too: in no other order
  would a prefix be the tree that the scores promise."""
  nodes, depth, _, shared, grid = case
  table = laws(sum(case), depth, case[2], shared, grid)
  whole = grow(tree_of(case), table)[0]
  assert jnp.all(whole.logq_BN[:, 1:] <= whole.logq_BN[:, :-1])
  for n in (nodes // 2, nodes - 1):
    small = grow(tree_of((n, *case[1:])), table)[0]
    for name in ('token', 'parent', 'depth', 'valid', 'logq'):
      want = getattr(small, f'{name}_BN')
      np.testing.assert_array_equal(getattr(whole, f'{name}_BN')[:, :n], want)


class TestTable:
  def test_survives_a_file(self, tmp_path):
    """Equal and of one hash, or every load would compile anew."""
    table = table_of([[1, 2.5], [3, 4]], contexts=(5, 9))
    table.write(tmp_path / 'x.json', batch=3)
    read = LatencyTable.read(tmp_path / 'x.json')
    assert read == table and hash(read) == hash(table)
    assert json.loads((tmp_path / 'x.json').read_text())['notes'] == {
      'batch': 3
    }

  @pytest.mark.parametrize(
    ('content', 'message'),
    [
      ('{', 'x.json is no latency table'),
      ('[]', 'x.json is no latency table'),
      ('{"contexts": [1]}', "x.json has no 'sizes'"),
    ],
  )
  def test_a_damaged_file_is_named(self, tmp_path, content, message):
    (tmp_path / 'x.json').write_text(content)
    with pytest.raises(ValueError, match=message) as error:
      LatencyTable.read(tmp_path / 'x.json')
    assert 'experiments.profile_latency' in str(error.value)

  @pytest.mark.parametrize(
    ('changes', 'message'),
    [
      ({'dtype': 'foo'}, "dtype is 'foo'"),
      ({'target': 3}, 'x.json is no latency table'),
      ({'target': [1, 2]}, 'x.json is no latency table'),
      ({'target': [['vocab', 1]]}, 'it is pairs of vocab, width'),
      ({'verify_ms': [1, 2]}, 'x.json is no latency table'),
      ({'draft_ms': None}, 'x.json is no latency table'),
    ],
  )
  def test_a_file_of_other_values_is_named(self, tmp_path, changes, message):
    content = dataclasses.asdict(table_of([[1, 2]])) | changes
    (tmp_path / 'x.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
      LatencyTable.read(tmp_path / 'x.json')

  def test_a_missing_file_is_named(self, tmp_path):
    with pytest.raises(ValueError, match='cannot be read'):
      LatencyTable.read(tmp_path)
    with pytest.raises(ValueError, match=r'no latency table .*x\.json'):
      LatencyTable.read(tmp_path / 'x.json')

  @pytest.mark.parametrize(
    ('changes', 'message'),
    [
      ({'verify_ms': ((1.0, float('nan')),)}, 'a cost is nan'),
      ({'verify_ms': ((1.0, float('inf')),)}, 'a cost is inf'),
      ({'verify_ms': ((1.0, 0.0),)}, 'a cost is 0.0'),
      ({'draft_ms': -1.0}, 'a cost is -1.0'),
      ({'verify_ms': ((1.0,),)}, r'1 rows of \[1\] costs'),
      ({'sizes': (9, 3)}, r'sizes are \[9, 3\]'),
      ({'contexts': (0,)}, r'contexts are \[0\]'),
    ],
  )
  def test_what_is_no_cost_is_refused(self, changes, message):
    with pytest.raises(ValueError, match=message):
      dataclasses.replace(table_of([[1, 2]]), **changes)

  def test_a_table_of_something_else_is_refused(self):
    """Both are named: a silent mismatch costs speed and nothing else."""
    good = table_of([[1, 2]])
    good.check(CONFIG, jnp.float32)
    bad = dataclasses.replace(good, device='TPU v9')
    here = jax.devices()[0].device_kind
    with pytest.raises(ValueError, match=f"'TPU v9' and not '{here}'"):
      bad.check(CONFIG)
    with pytest.raises(ValueError, match=r'float32 and not bfloat16.*profile'):
      good.check(CONFIG, jnp.bfloat16)
    with pytest.raises(
      ValueError, match='layers 3 and not 4, mlp 48 and not 9'
    ):
      good.check(tiny(layers=4, mlp=9))

  def test_weights_of_another_dtype_are_refused(self):
    """Only the weights know their dtype: `bind` is where both meet."""
    tree = costed(table_of([[1, 2]]))
    target = transformer.init(CONFIG, jax.random.key(0), jnp.bfloat16)
    with pytest.raises(ValueError, match='float32 and not bfloat16'):
      tree.bind((), target)

  def test_sizes_without_a_cost_are_named(self):
    with pytest.raises(ValueError, match=r'no cost of \[7\] rows.*--sizes'):
      costed(table_of([[1, 2]], sizes=(1, 9)), (7, 9))
    tree = BestFirst(nodes=9, depth=2, fanout=2, shared_rows=True)
    with pytest.raises(ValueError, match='sizes end with 1'):
      Costed(tree=tree, sizes=(1,), table=table_of([[1, 2]], sizes=(1, 9)))
