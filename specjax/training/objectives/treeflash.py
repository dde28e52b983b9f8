"""What TreeFlash's correction is trained for."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jax import lax

from specjax.checks import number
from specjax.drafters import treeflash
from specjax.training.batch import Batch, Fixed, Metrics, limited
from specjax.training.objectives import block
from specjax.tree_ops import take_rows
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeFlash:
  """The law behind the true previous token learns the target's.

  With anchors a and slots k = 1 .. block - 1, where token a + k is wanted, q'
  the law that `TreeFlash.correct` gives and q the backbone's own:

    loss = sum_a,k w_k (KL(p(. | x_<a+k) || q'_k(. | x_<=a, x_a+k-1))
           + marginal KL(p || q_k)) / sum_a,k w_k,  w_k = exp(-(k - 1) / gamma)

  with heat and 'ce' as in `objectives.Block`. TreeFlash, arXiv:2606.03819: 128
  anchors in 3072 tokens, forward KL, earlier slots weighted more; that weights
  are DFlash's is our choice, the paper's were not to be had.

  The paper trains the backbone too and finds that a frozen one is about as
  good. Frozen is our default: the plain law, which proposes the previous tokens
  of stage 1, then stays what it was; and nothing is computed back through it.
  `frozen=()` trains both, where `marginal` keeps the plain law good.
  """

  drafter: treeflash.TreeFlash
  anchors: int = 128  # blocks per row
  gamma: float = 7.0  # 0: all slots alike
  kind: str = 'kl'
  heat: float = 1.0
  marginal: float = 0.0  # weight of the plain law's loss
  prompt_end: bool = False  # see `blocks.draw_anchors`
  frozen: tuple[str, ...] = ('backbone',)

  def __post_init__(self):
    block.check(self.anchors, self.gamma, self.kind, self.heat)
    if not number(self.marginal) or self.marginal < 0:
      raise ValueError(f'marginal is {self.marginal!r}; give a number, or 0.')
    if self.marginal and 'backbone' in self.frozen:
      raise ValueError(
        f'marginal is {self.marginal} and the backbone, whose law it would '
        'train, is frozen; give frozen=() or marginal=0.'
      )

  def mass(self, fixed: Fixed, batch: Batch, key: Array) -> Array:
    return jnp.sum(block.draw(self, fixed, batch, key).weight_BAT)[None]

  def loss(
    self,
    params: treeflash.Weights,
    fixed: Fixed,
    batch: Batch,
    key: Array,
    mass_K: Array,
  ) -> tuple[Array, Metrics]:
    if 'backbone' in self.frozen:
      params = params.replace(backbone=lax.stop_gradient(params.backbone))
    lot = block.draw(self, fixed, batch, key)
    told = block.tell(self.drafter.backbone, params.backbone, fixed, batch, lot)
    before_BAT = take_rows(batch.token_BT, lot.slots.before_BAT)
    corrected_BATD = self.drafter.correct(
      params,
      fixed.target.embed_VD[before_BAT],
      told.raw_BATD,
      told.normed_BATD,
    )
    head = limited(self.drafter.head(params, fixed.target), fixed)
    measure = lambda hidden_BATD: block.measure(
      self.kind, hidden_BATD, head, fixed, told.view, lot.slots, heat=self.heat
    )
    value_BAT, right_BAT = measure(corrected_BATD)
    figures = {self.kind: block.mean(value_BAT, lot)}
    loss = figures[self.kind][0]
    if self.marginal:
      plain_BAT, _ = measure(told.normed_BATD)
      figures['marginal'] = block.mean(plain_BAT, lot)
      loss += self.marginal * figures['marginal'][0]
    return loss / mass_K[0], figures | block.progress(right_BAT, lot)
