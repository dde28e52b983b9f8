"""What the frozen target says of a batch: tapped layers and hidden states."""

from __future__ import annotations

from jax import lax

from specjax.models import transformer
from specjax.training.batch import Batch
from specjax.types import Array, struct
from specjax.weights.leaves import cast


@struct
class Teacher:
  taps_BTE: Array | None  # outputs of the tapped layers, side by side
  hidden_BTD: Array  # after the final norm; row t predicts token t + 1


def read_texts(
  weights: transformer.Weights, batch: Batch, taps: tuple[int, ...] = ()
) -> transformer.Output:
  """A pass of a language model over a batch; texts do not see one another."""
  return transformer.read(
    weights,
    batch.token_BT,
    position_BT=batch.position_BT,
    text_BT=batch.text_BT,
    taps=taps,
  )


def read(
  target: transformer.Weights, batch: Batch, taps: tuple[int, ...]
) -> Teacher:
  """The target's view, stored with the batch or computed; no gradient.

  Without taps to read, hidden states that are stored are enough.
  """
  taps_BTE, hidden_BTD = batch.taps_BTE, batch.hidden_BTD
  if hidden_BTD is None or (taps and taps_BTE is None):
    out = read_texts(target, batch, taps)
    taps_BTE, hidden_BTD = out.taps_BTE, out.hidden_BTD
  found = Teacher(taps_BTE=taps_BTE, hidden_BTD=hidden_BTD)
  return lax.stop_gradient(cast(found, target.dtype))
