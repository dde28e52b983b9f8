"""The stream that learns: what it is fed, that it helps, and what is kept."""

import functools

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from experiments import evospec_align as lib
from experiments import evospec_stream as streams
from experiments import run
from specjax import metrics
from specjax.decode.loop import decode
from specjax.decoder import Decoder
from specjax.methods import ar, draft_model
from specjax.models import transformer
from specjax.models.config import to_hf
from specjax.models.layers import unembed
from specjax.types import Params, Records
from specjax.vocab import feedback, teacher_forced
from specjax.vocab.alignment import Settings, loss
from specjax.vocab.evospec import EvoSpec

pytestmark = pytest.mark.usefixtures('quick_compiles')

NODES, NEW, V = 4, 24, fx.CONFIG.vocab
PROMPTS = [[i % V, (3 * i + 1) % V, (7 * i) % V] for i in range(10)]
# Positions are many and alike: steps may be long.
COMMON = Settings(rate=3e-3, batch=64, first=1000, warm_up=1, steps=10)


def bench(amount, vocab=None, **options):
  """The tiny target, drafted for by itself with noise."""
  weights = streams.perturbed(fx.WEIGHTS, amount, 0)
  method = draft_model.build(
    fx.CONFIG, to_hf(fx.CONFIG), nodes=NODES, rule='follow', coupled=False
  )
  params = Params(target=fx.WEIGHTS, drafter=weights)
  if vocab is not None:
    method, params = vocab.wrap(method, params)
  return streams.Bench(
    method=method,
    params=params,
    weights=weights,
    observe=OBSERVE,
    best=V,
    **{'chunk': 4, 'new': NEW, 'pad_to': 8, 'ring': 128} | options,
  )


OBSERVE = feedback.observer(V)
NOISY = bench(0.5)


@functools.cache
def texts():
  """Plain decoding's."""
  method = ar.build(fx.CONFIG)
  decoder = Decoder(method=method, params=Params(target=fx.WEIGHTS))
  made = decoder.generate(PROMPTS, max_new_tokens=NEW, stop_ids=())
  return made.tokens


@functools.cache
def rows(arm):
  settings = lib.settings_of(arm, COMMON)
  return list(lib.arm_rows(NOISY, settings, PROMPTS, texts()))


def first_ring(made, ids, rounds=4):
  """(tokens, ring) after a chunk, its law being that of the first drafter."""
  learner = streams.begin(made, COMMON)
  state = made.start(made.params, ids)
  before = jnp.copy(state.context.length_B[0])
  state, records = decode(
    made.method, made.params, state, max_rounds=rounds, observe=made.observe
  )
  head = made.method.drafter.head(made.params.drafter, made.params.target)
  token_T, end = state.context.tokens_BT[0], state.context.length_B[0]
  text = (0, token_T, before, end)
  key = jax.random.key(0)
  args = (made.scale, made.weights, head, learner, records, text, key)
  return token_T[:end], int(before), streams.learn(COMMON, *args)


@jax.jit
def laws(weights, token_T):
  """float32[T, V], by a pass of its own."""
  out = transformer.read(weights, token_T[None])
  return jax.nn.log_softmax(unembed(out.hidden_BTD, weights.head)[0], axis=-1)


class TestWhatIsFed:
  def test_positions_meet_their_laws(self):
    """Each emitted token's position once, in order, with the target's law of
    the token behind it. Catches a shift by one, rows of refused drafts, and
    paths that are read as nodes."""
    token_T, before, (learner, _) = first_ring(NOISY, PROMPTS[1])
    ring, count = learner.ring, int(learner.ring.count)
    at_N = np.asarray(ring.example.position_N[:count])
    assert at_N.tolist() == list(range(before - 1, len(token_T) - 1))
    # Greedy: the best token is the next one of the text.
    np.testing.assert_array_equal(ring.id_NA[:count, 0], token_T[at_N + 1])
    p_TV = np.exp(laws(fx.WEIGHTS, token_T))
    got = np.take_along_axis(p_TV[at_N], np.asarray(ring.id_NA[:count]), 1)
    np.testing.assert_allclose(ring.p_NA[:count], got, atol=1e-5)

  def test_the_loss_at_the_start_is_the_divergence(self):
    """Of adapters that add nothing: KL(target || drafter) by hand. Catches a
    drafter that is read at another position than the target."""
    token_T, before, (learner, _) = first_ring(NOISY, PROMPTS[1])
    ring, count = learner.ring, int(learner.ring.count)
    head = NOISY.method.drafter.head(NOISY.params.drafter, fx.WEIGHTS)
    draft = teacher_forced.over_texts(NOISY.weights, head, 2, learner.token_KT)
    adapters = streams.begin(NOISY, COMMON).aligner.adapters
    got = loss(
      draft,
      adapters,
      ring.example,
      ring.id_NA,
      ring.p_NA,
      (jnp.arange(len(ring.id_NA)) < count).astype(jnp.float32),
    )
    part = slice(before - 1, len(token_T) - 1)
    p, q = (laws(w, token_T)[part] for w in (fx.WEIGHTS, NOISY.weights))
    want = jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=1))
    assert want > 0.05
    np.testing.assert_allclose(got, want, rtol=1e-3)

  def test_what_the_cap_cuts_is_left_out(self):
    """A target that drafts for itself: the last round is cut short."""
    made = bench(0.0, new=7)
    token_T, before, (learner, value) = first_ring(made, PROMPTS[2])
    assert int(learner.ring.count) == len(token_T) - before == 6
    assert learner.ring.example.position_N[:6].tolist() == [*range(3, 9)]
    assert abs(value) < 1e-5  # nothing to learn from itself

  def test_a_list_masks_what_it_lacks(self):
    """Whole probabilities of listed tokens, 0 for the others."""
    made = bench(0.5, EvoSpec(ranks=fx.FEW, buffer=4))
    head = made.method.drafter.head(made.params.drafter, fx.WEIGHTS)
    id_A = jnp.broadcast_to(jnp.arange(V), (2, 1, NODES, V))
    seen = feedback.Seen(
      id_BPA=id_A,
      p_BPA=jnp.full(id_A.shape, 1 / V),
      length_B=jnp.asarray([[2], [3]]),
    )
    ring = feedback.collect(
      lambda adapters, example, id_NA: jnp.full(id_NA.shape, -1.0),
      None,
      head,
      streams.begin(made, COMMON).ring,
      Records(count=jnp.int32(2), values=seen),
      jnp.int32(3),
      jnp.int32(4),
      jnp.int32(9),
    )
    assert ring.count == 5 and ring.example.text_N[:5].tolist() == [3] * 5
    assert ring.example.position_N[:5].tolist() == [3, 4, 5, 6, 7]
    want = [1 / V if i in fx.FEW else 0 for i in range(V)]
    np.testing.assert_allclose(ring.p_NA[:5], [want] * 5)
    moved = made.params_with(fx.WEIGHTS).drafter
    assert moved.inner is fx.WEIGHTS
    assert moved.rows_VD is made.params.drafter.rows_VD

  def test_texts_that_are_gone_are_forgotten(self):
    """Else their positions would be read in the text that took their row."""
    learner = streams.begin(NOISY, COMMON)
    for at, ids in enumerate(PROMPTS[:5]):
      learner, _ = streams.answer(NOISY, COMMON, learner, ids, at)
    text_N = np.asarray(learner.ring.example.text_N)
    mass_N = np.asarray(jnp.sum(learner.ring.p_NA, axis=1))
    written = np.arange(len(text_N)) < int(learner.ring.count)
    assert np.any(written & (text_N == 0))
    np.testing.assert_array_equal(mass_N > 0, written & (text_N > 0))
    for at in range(1, 5):
      row = learner.token_KT[at % NOISY.texts]
      assert row[:3].tolist() == PROMPTS[at]


class TestArms:
  def test_learning_raises_acceptance(self):
    """In the second half, over the arm that does not learn."""
    mean = lambda part: metrics.mean_accepted(
      [r['tokens'] for r in part], [r['rounds'] for r in part]
    )
    off, on = rows('off')[5:], rows('on')[5:]
    assert mean(on) > mean(off) + 0.2, (mean(on), mean(off))

  def test_off_learns_nothing(self):
    off, on = rows('off'), rows('on')
    assert all(r['updates'] == r['align_s'] == 0 for r in off)
    assert all(r['loss'] is None for r in off)
    assert sum(r['updates'] for r in on) >= len(PROMPTS)
    assert all(r['align_s'] > 0 for r in on)

  def test_a_wrong_text_ends_the_run(self):
    wrong = [[*texts()[0][:-1], (texts()[0][-1] + 1) % V], *texts()[1:]]
    with pytest.raises(RuntimeError, match='prompt 0'):
      list(lib.arm_rows(NOISY, None, PROMPTS, wrong))

  def test_arms_go_on_or_start_anew(self, tmp_path, monkeypatch):
    """A whole arm is kept, one that was cut short is not."""
    path, begun = tmp_path / 'rows.jsonl', []
    plain = [
      {'arm': 'plain', 'prompt': i, 'ids': x} for i, x in enumerate(texts())
    ]
    have = lambda arm: [
      {'arm': arm, 'prompt': i, **row} for i, row in enumerate(rows(arm))
    ]
    run.append_rows(path, [*plain, *have('off'), *have('on')[:4]])

    def arm_rows(bench, settings, prompts, texts):
      begun.append(settings.heat)
      return rows('on')

    monkeypatch.setattr(lib, 'arm_rows', arm_rows)
    got = lib.all_rows(None, NOISY, COMMON, PROMPTS, path)
    assert begun == [COMMON.heat, float('inf')]
    assert run.read_rows(path) == run.json.loads(run.dumps(got))
    arms = [row['arm'] for row in got]
    assert [arms.count(a) for a in ('plain', *lib.ARMS)] == [10] * 4
    held = streams.held_bytes(NOISY, COMMON)
    off, on, _ = lib.table(got, NODES, held).splitlines()[1:]
    assert off.split()[-1] == '0' and on.split()[-1] == str(
      held['adapters'] + held['optimiser'] + held['ring']
    )


def test_a_ring_that_is_too_small_is_refused():
  with pytest.raises(ValueError, match='ring is 15'):
    bench(0.5, ring=15)
