"""Traces of rounds: their labels, their rows, and the file they stand in."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import methods_fixture as fixture
import numpy as np
import pytest

from specjax import tree_ops
from specjax.decode.loop import decode
from specjax.models import cache as kv
from specjax.models.layers import unembed
from specjax.models.transformer import forward
from specjax.training import trace_file
from specjax.training.collect import Plan, collect
from specjax.training.traces import Watch, tracing

pytestmark = pytest.mark.usefixtures('quick_compiles')

# More prefixes than tokens: some of the first row are dead.
POOL = 18
PLAN = Plan(nodes=30, new_tokens=14, hidden='float32', batch=3, rounds=4)
FIELDS = trace_file.FIELDS


@pytest.fixture(scope='module')
def case():
  return fixture.built('taps', nodes=9, pool=POOL)


def stepped(case, nodes, rounds=3):
  """[(texts before, what `Watch` saw)] of single rounds."""
  method = tracing(case.method, nodes)
  traced = fixture.Case(method, case.params.replace(tree=()))
  state = fixture.start(traced, fixture.rows_of(new=14))
  found = []
  for _ in range(rounds):
    token_BT, length_B = jax.device_get(
      (state.context.tokens_BT, state.context.length_B)
    )
    texts = [
      row[:n].tolist() for row, n in zip(token_BT, length_B, strict=True)
    ]
    state, records = decode(
      method,
      traced.params,
      state,
      max_rounds=1,
      observe=Watch(pool=POOL, hidden='float32'),
    )
    first = jax.tree.map(lambda x: np.asarray(x[0]), records.values)
    found.append((texts, first))
  return found


@functools.partial(jax.jit, static_argnames='width')
def laws_of(weights, token_BT, width):
  """float32[B, T, V]: the target's laws of whole texts, without a cache."""
  b = token_BT.shape[0]
  out = forward(
    weights,
    token_BT,
    jnp.broadcast_to(jnp.arange(width), (b, width)),
    kv.empty(weights.config, b, 1, weights.dtype),
    jnp.zeros(b, jnp.int32),
    tree_ops.causal(b, width),
  )
  return jax.nn.softmax(unembed(out.hidden_BTD, weights.head))


def pool_paths(rounds, b):
  """{(p, w): tokens of the path} of live nodes of round b, root at (0, 0)."""
  paths = {(0, 0): []}
  for t, w in np.argwhere(rounds.score_BTW[b] > -np.inf).tolist():
    token = rounds.token_BTC[b, t, rounds.rank_BTW[b, t, w]]
    paths[t + 1, w] = [*paths[t, int(rounds.parent_BTW[b, t, w])], int(token)]
  return paths


@pytest.mark.parametrize('nodes', [30, 5 * POOL + 1])
def test_labels_are_a_fresh_pass(case, nodes):
  """Catches labels of a neighbour (a node's own law for its parent's, or the
  row before), of another row or round, of dead nodes, and a pool that is not
  the one serving makes: the target reads prefix + path from its start."""
  for texts, rounds in stepped(case, nodes):
    for b, text in enumerate(texts):
      assert rounds.root_B[b] == text[-1]
      paths = pool_paths(rounds, b)
      seen = [at for at in paths if rounds.seen_BPW[b][at]]
      assert np.sum(rounds.seen_BPW[b]) == len(seen)
      assert len(seen) == min(nodes, len(paths))
      token = np.zeros((len(seen), 48), np.int32)
      for row, at in zip(token, seen, strict=True):
        row[: len(text) + len(paths[at])] = text + paths[at]
      law = np.asarray(laws_of(fixture.WEIGHTS, token, 48))
      want_pi = np.zeros_like(rounds.pi_BTW[b])
      want_rest = np.zeros_like(rounds.rest_BTU[b])
      for i, (p, u) in enumerate(seen):
        if p == want_rest.shape[0]:
          continue
        p_V = law[i, len(text) + p - 1]
        mine = [
          (t, w, paths[t, w][-1])
          for t, w in paths
          if t == p + 1 and rounds.parent_BTW[b, p, w] == u
        ]
        for _, w, v in mine:
          want_pi[p, w] = p_V[v]
        want_rest[p, u] = 1 - sum(p_V[v] for *_, v in mine)
      np.testing.assert_allclose(rounds.pi_BTW[b], want_pi, atol=1e-4)
      np.testing.assert_allclose(rounds.rest_BTU[b], want_rest, atol=1e-4)


def test_the_best_of_the_pool_are_seen(case):
  """Fails where what is verified is not what the marginals rank first."""
  for _, rounds in stepped(case, 30, rounds=1):
    for b in range(len(rounds.root_B)):
      score = rounds.score_BTW[b]
      cut = -np.sort(-score.ravel())[28]
      assert np.all(rounds.seen_BPW[b, 1:] == (score >= cut))


def test_heat_is_the_labels_alone(case):
  """A colder target is surer; nothing else changes."""
  one = next(iter(run(case, PLAN)))
  cold = next(iter(run(case, dataclasses.replace(PLAN, heat=0.25))))
  known = one.pi_BTW > 0
  best = np.max(one.pi_BTW, axis=-1).mean()
  assert np.max(cold.pi_BTW, axis=-1).mean() > best + 0.01
  assert np.all(cold.pi_BTW[~known] == 0)
  np.testing.assert_array_equal(one.seen_BPW, cold.seen_BPW)
  np.testing.assert_array_equal(one.logq_BTC, cold.logq_BTC)


def run(case, plan, prompts=fixture.PROMPTS, **options):
  return list(collect(case.method, case.params, prompts, plan, **options))


def same(a, b, **tolerance):
  for name in FIELDS:
    x, y = getattr(a, name), getattr(b, name)
    assert x.shape == y.shape and x.dtype == y.dtype, name
    np.testing.assert_allclose(
      x.astype(np.float32), y.astype(np.float32), err_msg=name, **tolerance
    )


def test_rows_are_the_rounds_each_was_alive_in(case):
  """Catches rounds of rows that are done, lost at the edge of a call, or put
  under another prompt: batches of one, and single steps, say the same."""
  together = run(case, PLAN)
  alone = run(case, dataclasses.replace(PLAN, batch=1, rounds=32))
  assert len(together) == len(alone) == len(fixture.PROMPTS)
  for a, b in zip(together, alone, strict=True):
    same(a, b, atol=1e-4)
  counts = [len(x.root_B) for x in together]
  assert len(set(counts)) > 1 and max(counts) > PLAN.rounds
  for i, (_, step) in enumerate(stepped(case, 30)):
    for b, rounds in enumerate(together):
      one = jax.tree.map(lambda x, i=i: x[i], rounds)
      same(one, jax.tree.map(lambda x, b=b: x[b], step), atol=1e-4)


def test_a_stop_id_ends_a_prompt(case):
  """Fails where stop ids get lost: every text would be as long as it may."""
  firsts = tuple({int(rounds.root_B[0]) for rounds in run(case, PLAN)})
  for rounds in run(case, dataclasses.replace(PLAN, stop_ids=firsts)):
    assert len(rounds.root_B) == 0


def to_file(path, case, prompts=fixture.PROMPTS, **changes):
  plan = dataclasses.replace(PLAN, batch=1, **changes)
  progress = lambda left: left
  return trace_file.collect_to(
    path, case.method, case.params, prompts, plan, every=1, progress=progress
  )


def test_a_stopped_collection_goes_on(case, tmp_path):
  """Catches prompts that are skipped, doubled or reordered after a stop, and
  a file that is not the one that was written."""
  whole = to_file(tmp_path / 'whole', case)

  def stops(left):
    yield left[0]
    raise KeyboardInterrupt

  path = tmp_path / 'stopped'
  plan = dataclasses.replace(PLAN, batch=1)
  with pytest.raises(KeyboardInterrupt):
    trace_file.collect_to(
      path,
      case.method,
      case.params,
      fixture.PROMPTS,
      plan,
      every=1,
      progress=stops,
    )
  assert trace_file.load(path).prompts == 1
  resumed = to_file(path, case)
  for traces in (resumed, trace_file.load(path), to_file(path, case)):
    same(whole.rounds, traces.rounds)
    assert traces.prompts == len(fixture.PROMPTS)
    np.testing.assert_array_equal(whole.prompt_B, traces.prompt_B)
    assert traces.manifest == whole.manifest
  assert np.unique(whole.prompt_B).tolist() == [0, 1, 2]


def test_another_collection_is_refused(case, tmp_path):
  """Rounds of two drafters in one file would train a scorer for neither."""
  path = tmp_path / 'traces'
  to_file(path, case, fixture.PROMPTS[:1])
  with pytest.raises(ValueError, match='nodes was 30 and is 31'):
    to_file(path, case, nodes=31)
  with pytest.raises(ValueError, match='prompts are not the first'):
    to_file(path, case, fixture.PROMPTS[::-1])
  other = case.params.drafter.replace(norm_D=case.params.drafter.norm_D * 2)
  changed = fixture.Case(case.method, case.params.replace(drafter=other))
  with pytest.raises(ValueError, match='weights was'):
    to_file(path, changed)
  to_file(path, case, fixture.PROMPTS[:2])  # more prompts are welcome
  path.write_bytes(path.read_bytes()[:40])
  with pytest.raises(ValueError, match='cannot be read'):
    to_file(path, case)


def test_what_cannot_be_traced(case):
  """Before any prompt is decoded."""
  with pytest.raises(ValueError, match='has no pool'):
    tracing(fixture.built('ddtree').method, 9)
  with pytest.raises(ValueError, match='root are 91 rows'):
    run(case, dataclasses.replace(PLAN, nodes=92))
  with pytest.raises(ValueError, match='exceed the context'):
    run(case, dataclasses.replace(PLAN, new_tokens=10**6))
  with pytest.raises(ValueError, match='is empty'):
    run(case, PLAN, prompts=[[1], []])
  for wrong in ({'heat': 0}, {'temperature': -1}, {'hidden': 'int8'}):
    with pytest.raises(ValueError, match=next(iter(wrong))):
      dataclasses.replace(PLAN, **wrong)
