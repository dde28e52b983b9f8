"""Standard speculative decoding: an independent small model drafts."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checks import check_whole
from specjax.drafters.draft_model import DraftModel
from specjax.method import Method
from specjax.models.config import ModelConfig, from_hf
from specjax.models.transformer import scans
from specjax.rules import chain_parts


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 5,
  rule: str = 'rejection',
  coupled: bool | float | Sequence[float] | None = None,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows: the root and nodes - 1 sampled drafts.

  Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the small model.
    nodes: 1 is plain decoding.
    rule: 'follow' or 'rejection', see `rules.chain_parts`.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`. None: with
      rule 'follow'.
    stacked: scan over the small model's layers; None: not on CPU.

  Raises:
    ValueError: another vocabulary than the target's, or no node.
  """
  config = from_hf(drafter_config)
  if config.vocab != target_config.vocab:
    raise ValueError(
      f'the draft model has {config.vocab} tokens and the target '
      f'{target_config.vocab}; choose a draft model with the same vocabulary.'
    )
  check_whole(1, nodes=nodes)
  return Method(
    name='draft_model',
    drafter=DraftModel(config=config, stacked=scans(stacked)),
    **chain_parts(nodes - 1, rule, coupled),
  )
