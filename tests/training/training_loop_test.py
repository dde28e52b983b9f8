"""The training loop: goes on exactly, loses nothing, says what went wrong."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from specjax.models import transformer
from specjax.models.config import tiny
from specjax.training import loop
from specjax.training.batch import Batch, Fixed
from specjax.training.objectives.language_model import LanguageModel
from specjax.training.step import Optimizer, begin

STEPS = 12
CONFIG = tiny(vocab=20, width=16, layers=1, mlp=16)
OPTIMIZER = Optimizer(rate=1e-2, steps=STEPS)


class Texts:
  """Random texts, a place in them, and a kill or a fault where asked."""

  def __init__(self, die_at=None, bad_at=None):
    self.at, self.die_at, self.bad_at = 0, die_at, bad_at
    self.seen = []

  def draw(self, params):
    del params
    self.at += 1
    if self.at == self.die_at:
      raise KeyboardInterrupt
    token = np.random.default_rng(self.at).integers(0, 20, (1, 2, 9))
    self.seen.append(self.at)
    return Batch(
      token_BT=token.astype(np.int32),
      wanted_BT=np.ones((1, 2, 9), bool),
      text_BT=np.ones((1, 2, 9), np.int32),
      position_BT=np.broadcast_to(np.arange(9, dtype=np.int32), (1, 2, 9)),
    ), [self.at * 100]

  def get_state(self):
    return {'at': self.at}

  def set_state(self, state):
    self.at = state['at']


def fit(
  folder, source, *, objective=None, optimizer=OPTIMIZER, save=5, look=None
):
  rows = []
  objective = objective or LanguageModel()
  init = lambda: begin(
    optimizer, objective, transformer.init(CONFIG, jax.random.key(3)), 0
  )
  state = loop.fit(
    folder,
    optimizer,
    objective,
    init,
    Fixed(target=None),
    source,
    pace=loop.Pace(log=1, save=save),
    dtype='float32',
    log=rows.append,
    look=look,
  )
  return state, rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spoilt:
  """The loss of a language model, not a number from some step's texts on."""

  frozen = ()
  token: int = 0

  def mass(self, fixed, batch, key):
    return LanguageModel().mass(fixed, batch, key)

  def loss(self, params, fixed, batch, key, mass_K):
    loss, metrics = LanguageModel().loss(params, fixed, batch, key, mass_K)
    bad = batch.token_BT[0, 0] == self.token
    return loss + jnp.where(bad, jnp.nan, 0.0), metrics


class TestGoesOn:
  def test_killed_and_whole_runs_are_the_same(self, tmp_path):
    """Catches a key, a moment, a rate or a place that is not saved."""
    whole_texts = Texts()
    whole, rows = fit(tmp_path / 'whole', whole_texts)
    with pytest.raises(KeyboardInterrupt):
      fit(tmp_path / 'cut', Texts(die_at=6))
    again = Texts()
    state, later = fit(tmp_path / 'cut', again)
    assert again.seen == whole_texts.seen[5:]
    assert later == rows[5:]
    jax.tree.map(np.testing.assert_array_equal, state.params, whole.params)
    jax.tree.map(np.testing.assert_array_equal, state.moments, whole.moments)

  def test_a_kill_in_mid_save_loses_that_save_only(self, tmp_path, monkeypatch):
    """Catches files that are written in place, or a half one that is read."""
    whole, _ = fit(tmp_path / 'whole', Texts())
    fit_up_to_ten = Texts(die_at=11)
    with pytest.raises(KeyboardInterrupt):
      fit(tmp_path / 'cut', fit_up_to_ten)
    assert loop.latest(tmp_path / 'cut') == 10
    real = ocp.CheckpointManager._finalize
    monkeypatch.setattr(ocp.CheckpointManager, '_finalize', _die)
    with pytest.raises((KeyboardInterrupt, OSError)):
      fit(tmp_path / 'cut', Texts(), save=11)
    monkeypatch.setattr(ocp.CheckpointManager, '_finalize', real)
    state, _ = fit(tmp_path / 'cut', Texts())
    jax.tree.map(np.testing.assert_array_equal, state.params, whole.params)

  def test_done_is_done(self, tmp_path):
    fit(tmp_path, Texts())
    texts = Texts()
    _, rows = fit(tmp_path, texts)
    assert not rows and not texts.seen


def _die(*args, **kwargs):
  raise KeyboardInterrupt


class TestFaults:
  def test_nan_stops_and_keeps_the_checkpoint(self, tmp_path):
    first = Texts()
    first.at = 7
    batch, _ = first.draw(None)
    token = int(batch.token_BT[0, 0, 0])
    seen = [int(Texts_at(i).token_BT[0, 0, 0]) for i in range(1, 8)]
    bad_step = next(i for i in range(1, 9) if [*seen, token][i - 1] == token)
    with pytest.raises(
      ValueError, match=rf'step {bad_step} .*\[{bad_step}00\]'
    ):
      fit(tmp_path, Texts(), objective=Spoilt(token=token), save=1)
    assert loop.latest(tmp_path) == bad_step - 1

  def test_full_disk(self, tmp_path, monkeypatch):
    """Earlier checkpoints stay, and the message names them."""
    with pytest.raises(KeyboardInterrupt):
      fit(tmp_path, Texts(die_at=7))

    def full(*args, **kwargs):
      raise OSError(28, 'No space left on device')

    monkeypatch.setattr(ocp.CheckpointManager, 'save', full)
    with pytest.raises(OSError, match=r'step 10 .*No space.*\[5\]'):
      fit(tmp_path, Texts())
    assert loop.latest(tmp_path) == 5

  def test_another_model(self, tmp_path):
    fit(tmp_path, Texts())
    longer = dataclasses.replace(OPTIMIZER, steps=STEPS + 1)
    params = transformer.init(
      dataclasses.replace(CONFIG, layers=2), jax.random.key(0)
    )
    with pytest.raises(ValueError, match='another model'):
      loop.fit(
        tmp_path,
        longer,
        LanguageModel(),
        lambda: begin(longer, LanguageModel(), params, 0),
        Fixed(target=None),
        Texts(),
        pace=loop.Pace(),
        dtype='float32',
        log=lambda row: None,
      )


def Texts_at(step):
  texts = Texts()
  texts.at = step - 1
  return texts.draw(None)[0]


class TestLooks:
  def test_last_step_is_looked_at(self, tmp_path):
    look = lambda params, step: {'accepted': float(step)}
    _, rows = fit(tmp_path, Texts(), look=look)
    assert [r for r in rows if 'accepted' in r] == [rows[-1]]
    assert rows[-1]['accepted'] == STEPS
    json.dumps(rows)
