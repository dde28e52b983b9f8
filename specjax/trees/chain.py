"""One guess per position."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax import sampling, tree_ops
from specjax.checks import whole
from specjax.types import Array, Ask, Candidates, Frontier, Round, TokenTree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
  """The drafter's best token at each depth, or a sampled one.

  `depth=0` is plain decoding in the same loop, so that a speed-up is measured
  against a baseline with the same overhead. A sampled chain keeps the laws it
  was drawn from, which `Rejection` needs.
  """

  depth: int
  sampled: bool = False

  def __post_init__(self):
    if not whole(self.depth) or self.depth < 0:
      raise ValueError(
        f'nodes is {self.depth + 1}; give a whole number, the root alone is 1.'
      )

  @property
  def ask(self) -> Ask:
    return Ask(depth=self.depth, fanout=None if self.sampled else 1)

  @property
  def nodes(self) -> int:
    return self.depth + 1

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`; learns nothing, so `params` is not read."""
    del params
    root_B = tree_ops.root_token(round.context)
    b = root_B.shape[0]
    tokens, scores, laws = [], [], []
    candidates, noise_BPV = root, self._noise(root, round)
    for depth in range(1, self.depth + 1):
      pick_B = jnp.zeros((b,), jnp.int32)  # best first
      if noise_BPV is not None:
        perturbed_BV = candidates.logq_BWC[:, 0] + noise_BPV[:, depth - 1]
        pick_B = jnp.argmax(perturbed_BV, axis=-1).astype(jnp.int32)
      tokens.append(_at(candidates.token_BWC, pick_B))
      scores.append(_at(candidates.logq_BWC, pick_B))
      laws.append(candidates.logq_BWC[:, 0])
      if depth < self.depth:
        frontier = Frontier(
          token_BW=tokens[-1][:, None],
          row_BW=jnp.zeros((b, 1), jnp.int32),
          depth=depth,
        )
        candidates, scratch = expand(scratch, frontier)
    if not tokens:
      none_B0 = jnp.zeros((b, 0), jnp.int32)
      return tree_ops.chain(root_B, none_B0, none_B0), scratch
    draft = None
    if noise_BPV is not None:
      draft = Candidates(root.token_BWC, jnp.stack(laws, axis=1))
    tree = tree_ops.chain(
      root_B, jnp.stack(tokens, 1), jnp.stack(scores, 1), draft=draft
    )
    return tree, scratch

  def _noise(self, root: Candidates, round: Round) -> Array | None:
    """float32[B, P, V] of the drafts' own; None where the best one is taken."""
    if not self.sampled or round.sampling.all_greedy or not self.depth:
      return None
    return sampling.noise(
      round.key_B,
      round.context.length_B,
      self.depth,
      root.logq_BWC.shape[-1],
      sampling.DRAFT,
    )


def _at(x_BWC: Array, pick_B: Array) -> Array:
  return jnp.take_along_axis(x_BWC[:, 0], pick_B[:, None], axis=1)[:, 0]
