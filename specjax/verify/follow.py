"""Sample and match: the default rule."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.tree_ops import ancestors, walk
from specjax.types import Array, Round, TokenTree, Verdict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Follow:
  """Walks down from the root while a child holds the token the target drew.

  Lossless for every tree grown without seeing the target's logits, since each
  kept token *is* the target's draw at its own prefix; and no exact rule accepts
  more on a fixed tree (SpecInfer's naive sampling, Miao et al.,
  arXiv:2305.09781; the position-keyed draw is the coupling of Daliri et al.,
  arXiv:2408.07978). All nodes of a position share its noise, so the text does
  not depend on the tree, the round boundaries or the batch.
  """

  lossless: bool = True

  def __call__(
    self, tree: TokenTree, logits_BNV: Array, round: Round
  ) -> Verdict:
    noise_BNV = None
    if not round.sampling.all_greedy:
      # The children of a node at depth d are drawn with row d.
      noise_BNV = jnp.take_along_axis(
        round.noise_BPV, tree.depth_BN[:, :, None], axis=1
      )
    drawn_BN = sampling.draw(logits_BNV, round.sampling, noise_BNV)
    at_parent_BN = jnp.take_along_axis(drawn_BN, tree.parent_BN, axis=1)
    hit_BN = tree.valid_BN & (tree.token_BN == at_parent_BN)
    hit_BN = hit_BN.at[:, 0].set(True)  # the root is committed already
    above_BNN = ancestors(tree.parent_BN)
    kept_BN = jnp.all(hit_BN[:, None, :] | ~above_BNN, axis=-1)
    path_BP, length_B, end_B = walk(tree, kept_BN)
    bonus_B = jnp.take_along_axis(drawn_BN, end_B[:, None], axis=1)[:, 0]
    return Verdict(path_BP=path_BP, length_B=length_B, bonus_B=bonus_B)
