"""JetSpec: a DFlash block with causal attention, grown into a tree."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checks import check_whole, whole
from specjax.drafters.dflash_config import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.trees.best_first import BestFirst
from specjax.trees.families import Families
from specjax.verify.follow import Follow

TREES = ('families', 'best_first')


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 128,
  width: int = 7,
  depth: int | None = None,
  tree: str = 'families',
  coupled: bool | float | Sequence[float] = True,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows; the drafter is a DFlash whose block is causal.

  JetSpec, arXiv:2606.18394, and its code (github.com/hao-ai-lab/JetSpec). A row
  of the block sees the context, the anchor and the rows up to itself, in every
  layer; still one pass gives one law per depth, which all nodes of the depth
  share, as the released code does and the paper's formulas do not.

  Parity with the released heads is unproven: no output of the reference code
  was at hand. What is tested are the mask, the tree rule and losslessness.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter; `causal_head` (or
      `causal`) in its `dflash_config` is true.
    nodes: root included, as the paper counts.
    width: children of a node.
    depth: longest prefix; None is what the block fills. The authors' commands
      go beyond that (20 for a block of 16), which is not done here.
    tree: 'families' is the authors' rule, 'best_first' DDTree's.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: a head that is not causal, no such tree, sizes that the tree or
      the block refuses, or see `dflash_config.from_hf`.
  """
  if tree not in TREES:
    raise ValueError(f'tree is {tree!r}; choose one of {", ".join(TREES)}.')
  drafter = from_hf(drafter_config, target_config, stacked=scans(stacked))
  if not drafter.causal:
    raise ValueError(
      'the drafter is a bidirectional DFlash head (causal_head is not set in '
      "its dflash_config); use method='dflash' or 'ddtree' for it."
    )
  depth = drafter.max_depth if depth is None else depth
  check_whole(1, width=width)
  if not whole(depth) or not 1 <= depth <= drafter.max_depth:
    raise ValueError(
      f'depth is {depth!r}; the block of {drafter.block} fills 1 to '
      f'{drafter.max_depth} positions.'
    )
  kind = Families if tree == 'families' else BestFirst
  children = 'width' if tree == 'families' else 'fanout'
  return Method(
    name='jetspec',
    drafter=drafter,
    tree=kind(
      nodes=nodes,
      depth=depth,
      shared_rows=drafter.shared_rows,
      **{children: min(width, target_config.vocab)},
    ),
    verify=Follow(),
    sharpness=sharpness_of(coupled),
  )
