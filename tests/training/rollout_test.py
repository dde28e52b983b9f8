"""Rounds of the real loop, and the blocks that are made of them."""

import dataclasses

import conformance_checks as checks
import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import opd_fixture as ox
import pytest

from specjax.drafters.dflash import DFlash
from specjax.training.batch import Fixed
from specjax.training.replay import Rollout, Seen, plan
from specjax.training.rollout import opd_batches

K = ox.SLOTS
PARAMS = {'fresh': ox.params_of, 'trained': ox.trained}


@pytest.fixture(scope='module', params=PARAMS)
def replay(request):
  """On the host; few drafts are kept, or many."""
  return on_host(ox.batches(PARAMS[request.param]())[0])


def on_host(replay):
  """All rows as one batch of numpy arrays."""
  return jax.device_get(ox.whole(replay))


def rounds_of(replay):
  """(row, the row's text, round, anchor, kept, committed) of live rounds."""
  for b, n in enumerate(replay.batch.text_BT.sum(axis=1)):
    text = replay.batch.token_BT[b, :n].tolist()
    for r in np.flatnonzero(replay.committed_BR[b]):
      facts = (replay.anchor_BR, replay.kept_BR, replay.committed_BR)
      yield b, text, r, *(int(x[b, r]) for x in facts)


class TestPlan:
  """By hand: 3 drafts a round, token i of a text is 10 + i."""

  # 2, 1 and 4 tokens, then a round of 3 of which the end leaves one; or one
  # that ends the text with its own correction. The fifth is of a done row.
  KEPT = np.array([[1, 0, 3, 2, 2], [0, 2, 0, 3, 3]], np.int32)
  ROUNDS = np.array([4, 2], np.int32)

  def rollout(self):
    draft_RBK = np.arange(100, 130, dtype=np.int32).reshape(5, 2, 3)
    return Rollout(
      token_BT=jnp.asarray(np.tile(np.arange(10, 26, dtype=np.int32), (2, 1))),
      prompt_B=jnp.asarray([3, 5], jnp.int32),
      length_B=jnp.asarray([12, 10], jnp.int32),
      rounds_B=jnp.asarray(self.ROUNDS),
      seen=Seen(
        draft_BK=jnp.asarray(draft_RBK),
        logp_BK=jnp.asarray(-draft_RBK.astype(np.float32)),
        kept_B=jnp.asarray(self.KEPT.T),
      ),
    )

  def test_blocks(self):
    """Catches anchors, masks or labels that are one off, and rejections that
    are made up where the text ended."""
    got = plan(self.rollout(), jax.random.key(0), tokens=13, rounds=6)
    want = {
      'anchor_BR': [[3, 5, 6, 10, 0, 0], [5, 6, 0, 0, 0, 0]],
      'kept_BR': [[1, 0, 3, 2, 0, 0], [0, 2, 0, 0, 0, 0]],
      'committed_BR': [[2, 1, 4, 1, 0, 0], [1, 3, 0, 0, 0, 0]],
    }
    for name, value in want.items():
      np.testing.assert_array_equal(getattr(got, name), value, name)
    row = lambda x: np.asarray(x).astype(int).tolist()
    none = [0, 0, 0]
    assert row(got.accepted_BRK[0]) == [
      [1, 0, 0], none, [1, 1, 1], [1, 0, 0], none, none
    ]  # fmt: skip
    assert row(got.committed_BRK[0]) == [
      [1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 0, 0], none, none
    ]  # fmt: skip
    assert row(got.rejected_BRK[0]) == [
      [0, 1, 1], [1, 1, 1], none, none, none, none
    ]  # fmt: skip
    assert row(got.rejected_BRK[1, :3]) == [[1, 1, 1], [0, 0, 1], none]
    assert row(got.label_BRK[0, :3]) == [
      [14, 15, 16], [16, 17, 18], [17, 18, 19]
    ]  # fmt: skip
    assert row(got.draft_BRK[1, :2]) == [[103, 104, 105], [109, 110, 111]]
    np.testing.assert_array_equal(got.logp_BRK[0, 2], [-112, -113, -114])
    assert row(got.batch.token_BT[1]) == [*range(10, 20), 0, 0, 0]
    assert row(got.batch.wanted_BT[0]) == [0] * 3 + [1] * 9 + [0]
    assert row(got.batch.text_BT[1]) == [1] * 10 + [0] * 3
    assert row(got.batch.position_BT[0]) == list(range(13))

  def test_rounds_that_do_not_fit(self):
    """Catches a dead round that takes a live one's place, and rounds whose
    parts come from different ones."""
    full = plan(self.rollout(), jax.random.key(0), tokens=12, rounds=5)
    drawn = set()
    for seed in range(8):
      got = plan(self.rollout(), jax.random.key(seed), tokens=12, rounds=2)
      anchors = got.anchor_BR[0].tolist()
      at = np.asarray([full.anchor_BR[0].tolist().index(a) for a in anchors])
      assert (np.diff(at) > 0).all() and (at < 4).all()
      cut = lambda x, at=at: np.asarray(x)[0, at]
      for name in ('kept_BR', 'committed_BR', 'draft_BRK', 'logp_BRK'):
        want = cut(getattr(full, name))
        np.testing.assert_array_equal(getattr(got, name)[0], want)
      np.testing.assert_array_equal(got.anchor_BR[1], full.anchor_BR[1, :2])
      drawn.add(tuple(at.tolist()))
    assert len(drawn) > 1


class TestRounds:
  def test_texts_are_the_targets_own(self, replay):
    """Catches a rollout that samples, or reads another prompt's row."""
    want = fx.run(fx.make_case('ar'), fx.rows_of(ox.PROMPTS, new=ox.NEW)).texts
    for b, prompt in enumerate(ox.PROMPTS):
      n = int(replay.batch.text_BT[b].sum())
      assert replay.batch.token_BT[b, :n].tolist() == prompt + want[b]

  def test_anchors_follow_what_was_committed(self, replay):
    """Catches a first anchor in the prompt, and slots that overlap or leave
    tokens out: all but the first and those behind whole blocks are in one."""
    replay_rounds = list(rounds_of(replay))
    for b, prompt in enumerate(ox.PROMPTS):
      mine = [x[1:] for x in replay_rounds if x[0] == b]
      text, at, free = mine[0][0], len(prompt), {len(prompt)}
      for _, _, anchor, _, committed in mine:
        assert anchor == at
        at += committed
        free |= {at} if committed > K else set()
      assert at == len(text) - 1
      place = replay.anchor_BR[b][:, None] + np.arange(1, K + 1)
      covered = place[replay.committed_BRK[b]].tolist()
      assert len(covered) == len(set(covered))
      assert set(covered) | free == set(range(len(prompt), len(text)))

  def test_streams(self, replay):
    """Catches a correction that counts as kept, and drafts of another round
    or slot."""
    for b, _, r, _, kept, committed in rounds_of(replay):
      same = replay.label_BRK[b, r] == replay.draft_BRK[b, r]
      slots = min(committed, K)
      assert same[: min(kept, slots)].all()
      assert not same[kept:slots].any() and slots <= kept + 1
      lost = replay.rejected_BRK[b, r]
      assert lost.sum() == (K - kept if committed > kept else 0)
      assert not lost[:kept].any()

  def test_log_probabilities_are_behind_wrong_drafts(self, replay):
    """A fresh pass over the text and the drafts, for one round in five.

    Catches rows of the text instead of the drafts', or of the slot itself.
    """
    wrong = 0
    for b, text, r, anchor, kept, _ in list(rounds_of(replay))[::5]:
      draft = replay.draft_BRK[b, r].tolist()
      logits_TV = checks.full_logits(text[: anchor + 1] + draft)
      logp_KV = jax.nn.log_softmax(logits_TV[anchor:-1], axis=-1)
      want_K = np.asarray(logp_KV)[np.arange(K), draft]
      np.testing.assert_allclose(replay.logp_BRK[b, r], want_K, atol=1e-4)
      wrong += kept < K - 1
    assert wrong

  def test_stops_within_what_was_kept(self):
    """Catches drafts called rejected though an end came before them."""
    cut = 0
    for stop in range(fx.CONFIG.vocab):
      got = on_host(ox.batches(ox.trained(), stop_ids=(stop,))[0])
      for b, text, r, _, kept, committed in rounds_of(got):
        if committed <= kept:
          cut += text[-1] == stop
          assert not got.rejected_BRK[b, r].any()
          assert got.accepted_BRK[b, r].sum() == committed
      self.test_streams(got)
    assert cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(DFlash):
  """Notes when it is traced."""

  traces: tuple = dataclasses.field(default=(), hash=False, compare=False)

  def begin(self, *args):
    self.traces[0].append(1)
    return super().begin(*args)


class TestBatches:
  def test_new_parameters_compile_nothing(self):
    """Catches parameters that became static, or shapes that follow texts."""
    own = {
      f.name: getattr(ox.DRAFTER, f.name)
      for f in dataclasses.fields(ox.DRAFTER)
    }
    traces = []
    drafter = Counted(**own, traces=(traces,))
    method = dataclasses.replace(ox.METHOD, drafter=drafter)
    options = {'rows': 2, 'micro': 1, 'new_tokens': 12, 'pad_to': 20}
    run = lambda seed, prompts: opd_batches(
      method, ox.FIXED, ox.params_of(seed), prompts, **options
    )
    _, first = run(1, ox.PROMPTS[:2])
    count = len(traces)
    assert count
    _, second = run(2, ox.PROMPTS)
    assert len(traces) == count and first['rounds'] != second['rounds']

  def test_figures_and_micro_batches(self):
    """Catches rows that change places, and a mean that counts the token which
    the prompt gave."""
    params = ox.trained()
    whole, figures = ox.batches(params, micro=4)
    parts, _ = ox.batches(params, rows=2, micro=1)
    assert jax.tree.leaves(parts)[0].shape[:2] == (4, 1)
    one, other = on_host(whole), on_host(parts)
    np.testing.assert_allclose(one.logp_BRK, other.logp_BRK, atol=1e-4)
    for name in ('anchor_BR', 'draft_BRK', 'committed_BR'):
      np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    rounds = (one.committed_BR > 0).sum()
    assert figures['tokens'] == one.committed_BR.sum() == 4 * (ox.NEW - 1)
    assert figures['mean_accepted'] == figures['tokens'] / rounds
    assert figures['dropped'] == 0

  def test_a_trimmed_vocabulary_drafts(self):
    """Catches drafts from rows that are not learned."""
    fixed = Fixed(target=fx.WEIGHTS, id_V=jnp.asarray(fx.FEW, jnp.int32))
    got = on_host(ox.batches(ox.params_of(), fixed)[0])
    assert np.isin(got.draft_BRK[got.committed_BR > 0], fx.FEW).all()
    whole = on_host(ox.batches(ox.params_of())[0])
    assert not np.isin(whole.draft_BRK, fx.FEW).all()

  @pytest.mark.parametrize(
    ('change', 'message'),
    [
      ({'method': fx.make_case('ddtree').method}, "'ddtree' drafts"),
      ({'method': fx.built('dflash', nodes=1).method}, 'drafts 0 deep'),
      ({'prompts': [[1], [99]]}, r'prompt 1 is \[99\]'),
      ({'prompts': [[1], []]}, r'prompt 1 is \[\]'),
      ({'prompts': [[1]] * 3}, '3 prompts'),
      ({'prompts': []}, '0 prompts'),
      ({'new_tokens': 1}, 'new_tokens is 1'),
      ({'new_tokens': 5000}, 'exceed the context'),
    ],
  )
  def test_refusals(self, change, message):
    """Before anything runs: there are no parameters here."""
    options = {
      'method': ox.METHOD,
      'fixed': ox.FIXED,
      'drafter': None,
      'prompts': [[1], [2]],
      'rows': 2,
      'micro': 2,
      'new_tokens': 4,
    }
    options |= change
    parts = [options.pop(x) for x in ('method', 'fixed', 'drafter', 'prompts')]
    with pytest.raises(ValueError, match=message):
      opd_batches(*parts, **options)
