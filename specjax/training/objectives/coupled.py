"""Training for drafts that see the verifier's noise."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.checks import number
from specjax.drafters import dflash
from specjax.training import chunked
from specjax.training.batch import (
  Batch,
  Fixed,
  Metrics,
  kept,
  limited,
  token_of,
)
from specjax.training.objectives import block
from specjax.tree_ops import take_rows
from specjax.types import Array, Head


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coupled:
  """What the drafter takes with the target's noise is what the target takes.

  With anchors a and slots k, T the temperature, s the sharpness, and g Gumbel
  noise drawn anew in every step for each token of the batch:

    y = argmax_v (log p(v | x_<a+k) + T g_v)
    loss = - sum_a,k w_k log softmax((log q_k + T g) / s)_y / sum_a,k w_k

  with w_k as in `objectives.Block`. It is the score by which
  `candidates.top_candidates` orders coupled drafts, and the token that the
  target draws; the mismatch of the two is what costs a draft. That the noise
  may be shared is the coupling of Daliri et al., arXiv:2408.07978; training for
  it is this project's own and has no paper.

  Blocks that cover the same token share its noise, as rounds do in decoding.
  Neither p nor q is cut by top-k or top-p. With a limited vocabulary y is the
  best of its tokens, and a slot whose token of the text is not among them does
  not count. Figures: `coupled`, the mean loss, and `accuracy` and `prefix` of
  y among all tokens.
  """

  drafter: dflash.DFlash
  anchors: int = 32  # blocks per row
  gamma: float = 7.0  # 0: all slots alike
  temperature: float = 1.0
  sharpness: tuple[float, ...] = (1.0,)  # per depth, as `Method.sharpness`
  prompt_end: bool = False  # see `blocks.draw_anchors`
  frozen: tuple[str, ...] = ()

  def __post_init__(self):
    block.check(self.anchors, self.gamma, 'ce', 1.0)
    if not number(self.temperature) or self.temperature <= 0:
      raise ValueError(
        f'temperature is {self.temperature!r}; give a number above 0. A greedy '
        'target has no noise to be coupled to: train with objectives.Block.'
      )
    if not self.sharpness or not all(
      number(s) and s > 0 for s in self.sharpness
    ):
      raise ValueError(
        f'sharpness is {self.sharpness}; give numbers above 0, one per depth.'
      )

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    return jnp.sum(block.draw(self, fixed, batch, key).weight_BAT)[None]

  def loss(
    self,
    params: dflash.Weights,
    fixed: Fixed,
    batch: Batch,
    key: Array,
    mass_K: Array,
  ) -> tuple[Array, Metrics]:
    lot = block.draw(self, fixed, batch, key)
    told = block.tell(self.drafter, params, fixed, batch, lot)
    head = limited(self.drafter.head(params, fixed.target), fixed)
    value_BAT, right_BAT = self._measure(
      told.normed_BATD,
      head,
      fixed,
      told.view,
      lot.slots,
      jax.random.fold_in(key, 1),
    )
    figures = {'coupled': block.mean(value_BAT, lot)}
    return figures['coupled'][0] / mass_K[0], figures | block.progress(
      right_BAT, lot
    )

  def _measure(
    self, normed_BATD, head: Head, fixed: Fixed, view, slots, key: Array
  ) -> tuple[Array, Array]:
    """(float32[B, A, T], bool[B, A, T]): what a slot loses, is it right?"""
    b, a, t, _ = normed_BATD.shape
    vocab = fixed.target.head.shape[0]

    def some(normed_cD, teacher_cD, row_c, before_c, sharpness_c):
      key_c = jax.vmap(lambda row: jax.random.fold_in(key, row))(row_c)
      noise_cV = sampling.noise(key_c, before_c + 1, 1, vocab)[:, 0]
      noise_cV = self.temperature * noise_cV
      target_cV = chunked.logits(teacher_cD, fixed.target.head) + noise_cV
      score_cV = chunked.logits(normed_cD, head.rows_VD) + kept(head, noise_cV)
      best_c = jnp.argmax(kept(head, target_cV), axis=1)
      logq_cV = jax.nn.log_softmax(score_cV / sharpness_c[:, None])
      logq_c = jnp.take_along_axis(logq_cV, best_c[:, None], axis=1)[:, 0]
      mine_c = token_of(head, jnp.argmax(score_cV, axis=1))
      return -logq_c, mine_c == jnp.argmax(target_cV, axis=1)

    last = len(self.sharpness) - 1
    at_T = [self.sharpness[min(k, last)] for k in range(t)]
    row_BAT = jnp.broadcast_to(jnp.arange(b)[:, None, None], (b, a, t))
    sharpness_BAT = jnp.broadcast_to(jnp.asarray(at_T, jnp.float32), (b, a, t))
    value_N, right_N = chunked.over_rows(
      some,
      block.flat(normed_BATD),
      block.flat(take_rows(view.hidden_BTD, slots.before_BAT)),
      row_BAT.reshape(-1),
      slots.before_BAT.reshape(-1),
      sharpness_BAT.reshape(-1),
    )
    return value_N.reshape(b, a, t), right_N.reshape(b, a, t)
