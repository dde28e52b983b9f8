"""TreeFlash: the likeliest paths of a block whose laws know their parent."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.drafters.treeflash import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.trees.best_first import BestFirst
from specjax.verify.follow import Follow


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 64,
  plain: int = 16,
  fanout: int = 16,
  coupled: bool | float | Sequence[float] = True,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows, root included, as the paper counts.

  arXiv:2606.03819; its reference code's 16 previous tokens and 16 children.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter.
    nodes: the paper's tree size.
    plain: previous tokens considered per position (M).
    fanout: children considered per node (K).
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: no node, or see `treeflash.from_hf`.
  """
  drafter = from_hf(
    drafter_config, target_config, plain=plain, stacked=scans(stacked)
  )
  tree = BestFirst(
    nodes=nodes,
    depth=drafter.max_depth,
    fanout=fanout,
    shared_rows=drafter.shared_rows,
  )
  return Method(
    name='treeflash',
    drafter=drafter,
    tree=tree,
    verify=Follow(),
    sharpness=sharpness_of(coupled),
  )
