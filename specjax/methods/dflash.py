"""DFlash: one block of guesses, its best token at each position."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checks import whole
from specjax.drafters.dflash_config import from_hf
from specjax.method import Method
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.rules import chain_parts


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int | None = None,
  rule: str = 'follow',
  coupled: bool | float | Sequence[float] | None = None,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows in a chain: the anchor and nodes - 1 guesses.

  Chen, Liang & Liu, arXiv:2602.06036.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter.
    nodes: at most the drafter's block, which None takes.
    rule: 'follow' or 'rejection', see `rules.chain_parts`.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`. None: with
      rule 'follow'.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: more nodes than the block or none, or see
      `dflash_config.from_hf`.
  """
  drafter = from_hf(drafter_config, target_config, stacked=scans(stacked))
  nodes = drafter.block if nodes is None else nodes
  if not whole(nodes) or not 1 <= nodes <= drafter.block:
    raise ValueError(
      f'nodes is {nodes!r}; a DFlash chain has 1 (the anchor alone) to '
      f"{drafter.block}, the drafter's block."
    )
  return Method(
    name='dflash',
    drafter=drafter,
    **chain_parts(nodes - 1, rule, coupled),
  )
