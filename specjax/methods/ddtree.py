"""DDTree: a DFlash block's laws as a tree of the likeliest prefixes."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.drafters.dflash_config import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.trees.best_first import BestFirst
from specjax.verify.follow import Follow


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 65,
  coupled: bool | float | Sequence[float] = True,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows; the drafter is a DFlash as it is.

  Ringel & Romano, arXiv:2604.12989.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter.
    nodes: root included; the paper's budget leaves it out and is nodes - 1.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: no node, or see `dflash_config.from_hf`.
  """
  drafter = from_hf(drafter_config, target_config, stacked=scans(stacked))
  tree = BestFirst(
    nodes=nodes,
    depth=drafter.max_depth,
    fanout=target_config.vocab,  # no rank is cut but by the budget
    shared_rows=drafter.shared_rows,
  )
  return Method(
    name='ddtree',
    drafter=drafter,
    tree=tree,
    verify=Follow(),
    sharpness=sharpness_of(coupled),
  )
