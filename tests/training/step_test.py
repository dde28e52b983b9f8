"""One optimiser step: micro-batches, frozen fields, memory, the guard."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specjax.models import transformer
from specjax.models.config import tiny
from specjax.training import chunked, step
from specjax.training.batch import Batch, Fixed, limited, row_of
from specjax.training.objectives.language_model import LanguageModel
from specjax.types import Head

CONFIG = tiny(vocab=20, width=16, layers=1, mlp=16)


def batch(rows, micro=1, t=9, vocab=20):
  token = np.random.default_rng(0).integers(0, vocab, (rows, t))
  text = np.ones((rows, t), np.int32)
  text[0, 5:] = 2  # rows differ in what counts
  text[1, 3:] = 0
  shape = (micro, rows // micro, t)
  return Batch(
    token_BT=jnp.asarray(token.reshape(shape), jnp.int32),
    wanted_BT=jnp.ones(shape, bool),
    text_BT=jnp.asarray(text.reshape(shape)),
    position_BT=jnp.broadcast_to(jnp.arange(t), shape),
  )


def after(micro, optimizer, objective=None, steps=2):
  objective = objective or LanguageModel()
  params = transformer.init(CONFIG, jax.random.key(3), stacked=False)
  state = step.begin(optimizer, objective, params, 0)
  for _ in range(steps):
    state, figures = step.update(
      optimizer,
      objective,
      state,
      Fixed(target=None),
      batch(4, micro),
      dtype='float32',
    )
  return state, figures


OPTIMIZER = step.Optimizer(rate=1e-2, steps=10)


def test_micro_batches_change_nothing():
  """Catches a mean of means: these micro-batches count differently."""
  whole, one = after(1, OPTIMIZER)
  parts, two = after(2, OPTIMIZER)
  for name in one:
    np.testing.assert_allclose(one[name], two[name], rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    whole.params,
    parts.params,
  )


def test_the_loss_is_of_pairs_within_a_text():
  """By hand, from the logits of the plain pass."""
  weights = transformer.init(CONFIG, jax.random.key(3), stacked=False)
  lot = jax.tree.map(lambda x: x[0], batch(4))
  objective, fixed = LanguageModel(), Fixed(target=None)
  mass_K = objective.mass(fixed, lot, None)
  loss, figures = objective.loss(weights, fixed, lot, None, mass_K)
  nats = []
  for token_T, text_T in zip(lot.token_BT, lot.text_BT, strict=True):
    for text in (1, 2):
      ids = token_T[text_T == text][None]
      if ids.shape[1] < 2:
        continue
      hidden = transformer.read(weights, ids).hidden_BTD[0]
      logp = jax.nn.log_softmax(hidden @ weights.head.T)
      nats += [-float(logp[i, ids[0, i + 1]]) for i in range(ids.shape[1] - 1)]
  assert len(nats) == float(mass_K[0]) == 8 * 2 + 2 + 4 + 3
  np.testing.assert_allclose(loss, np.mean(nats), rtol=1e-5)
  np.testing.assert_allclose(figures['nats'][0] / len(nats), loss, rtol=1e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keeps:
  """The language model's loss; some fields stay."""

  frozen: tuple = ('embed_VD', 'layers')

  def mass(self, *args):
    return LanguageModel().mass(*args)

  def loss(self, *args):
    return LanguageModel().loss(*args)


def test_frozen_fields_stay_and_have_no_moments():
  optimizer = dataclasses.replace(OPTIMIZER, decay=0.5)
  state, _ = after(1, optimizer, Keeps())
  first = transformer.init(CONFIG, jax.random.key(3), stacked=False)
  same = lambda a, b: bool(jnp.all(a == b))
  assert same(state.params.embed_VD, first.embed_VD)
  assert jax.tree.all(jax.tree.map(same, state.params.layers, first.layers))
  assert not same(state.params.head_VD, first.head_VD)
  sizes = {x.shape for x in jax.tree.leaves(state.moments)}
  assert first.layers[0].q_OD.shape not in sizes
  with pytest.raises(ValueError, match=r"frozen names \['nothing'\]"):
    after(1, OPTIMIZER, Keeps(frozen=('nothing',)))


def test_a_loss_that_is_no_number_changes_nothing():
  """So that the state can still be saved."""
  params = transformer.init(CONFIG, jax.random.key(3), stacked=False)
  bad = params.replace(norm_D=params.norm_D.at[0].set(jnp.nan))
  state = step.begin(OPTIMIZER, LanguageModel(), bad, 0)
  kept = jax.tree.map(jnp.copy, state.params)
  state, figures = step.update(
    OPTIMIZER, LanguageModel(), state, Fixed(target=None), batch(4)
  )
  assert np.isnan(figures['loss']) and int(state.step) == 0
  jax.tree.map(np.testing.assert_array_equal, state.params, kept)


def test_the_schedule_rises_and_falls():
  optimizer = step.Optimizer(rate=1.0, steps=100, warm_up=0.1, floor=0.1)
  rates = [float(optimizer.schedule()(i)) for i in range(101)]
  assert rates[0] == pytest.approx(0.1) and np.argmax(rates) == 10
  assert rates[10] == pytest.approx(1.0) and rates[100] == pytest.approx(0.1)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'rate': 0}, 'rate is 0'),
    ({'steps': 0}, 'steps'),
    ({'warm_up': 2}, 'warm_up is 2'),
    ({'clip': -1.0}, 'clip is -1'),
  ],
)
def test_settings_that_cannot_be(changes, message):
  with pytest.raises(ValueError, match=message):
    step.Optimizer(**{'rate': 1.0, 'steps': 3} | changes)


class TestChunks:
  def test_no_array_of_all_logits(self):
    """The compiled step needs less room than they alone would take."""
    config = tiny(vocab=32768, width=32, layers=1, mlp=32, tied=True)
    params = transformer.init(config, jax.random.key(0), stacked=False)
    state = step.begin(OPTIMIZER, LanguageModel(), params, 0)
    lot = batch(16, t=512, vocab=100)
    compiled = step.update.lower(
      OPTIMIZER, LanguageModel(), state, Fixed(target=None), lot
    ).compile()
    temps = compiled.memory_analysis().temp_size_in_bytes
    logits = 16 * 512 * config.vocab * 4
    # What stays beside the chunk: gradients and moments in the making.
    assert temps < logits / 2, (temps, logits)

  def test_over_rows_of_any_number(self):
    """Padded rows come back to no one; closed-over values have gradients."""
    x_ND = jax.random.normal(jax.random.key(0), (7, 3))
    scale = jnp.float32(2.0)
    of = lambda s: chunked.over_rows(lambda x: x * s, x_ND, chunk=4)
    np.testing.assert_allclose(of(scale), x_ND * 2)
    grad = jax.grad(lambda s: jnp.sum(of(s)))(scale)
    np.testing.assert_allclose(grad, jnp.sum(x_ND), rtol=1e-5)

  @pytest.mark.parametrize('reverse', [False, True])
  def test_divergence_by_hand(self, reverse):
    """In a trimmed vocabulary p is renormalised, the best token is not."""
    keys = jax.random.split(jax.random.key(1), 4)
    own_ND, theirs_ND, head_VD, target_VD = (
      jax.random.normal(k, s)
      for k, s in zip(keys, ((6, 4), (6, 4), (9, 4), (9, 4)), strict=True)
    )
    id_V = jnp.array([1, 4, 7])
    head = limited(Head(head_VD), Fixed(target=None, id_V=id_V))
    got, agree = chunked.divergence(
      own_ND, head, theirs_ND, target_VD, reverse=reverse, heat=0.7, chunk=4
    )
    log = lambda z: np.asarray(jax.nn.log_softmax(z / 0.7), float)
    q = log(own_ND @ head_VD[id_V].T)
    p = log((theirs_ND @ target_VD.T)[:, id_V])
    a, b = (q, p) if reverse else (p, q)
    np.testing.assert_allclose(got, (np.exp(a) * (a - b)).sum(1), rtol=1e-4)
    best = np.argmax(theirs_ND @ target_VD.T, axis=1)
    mine = np.asarray(id_V)[np.argmax(q, axis=1)]
    np.testing.assert_array_equal(agree, best == mine)

  def test_tokens_without_a_row(self):
    """-inf, and no gradient that is no number."""
    head = Head(jnp.eye(3), jnp.array([2, 5, 6]))
    row, there = row_of(head, jnp.array([5, 0, 9, 6]))
    assert there.tolist() == [True, False, False, True]
    assert row[0] == 1 and row[3] == 2
    logq = lambda h: chunked.log_probs(h, head, jnp.array([[5, 3]]))[0]
    hidden = jnp.ones((1, 3))
    assert np.isneginf(logq(hidden)[0, 1])
    grad = jax.grad(
      lambda h: jnp.sum(jnp.where(jnp.isfinite(logq(h)), logq(h), 0))
    )
    assert np.isfinite(grad(hidden)).all()


def test_optax_norm_is_of_float32_gradients():
  state, figures = after(1, OPTIMIZER, steps=1)
  assert figures['grad_norm'].dtype == jnp.float32
  assert all(
    x.dtype == jnp.float32
    for x in jax.tree.leaves((state.params, state.moments))
    if jnp.issubdtype(x.dtype, jnp.floating)
  )
  assert optax.tree.norm(state.params) > 0
