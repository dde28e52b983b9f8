"""TAPS: a DFlash block's laws, judged by a small model of the target."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.drafters.dflash_config import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.trees.target_aware import TargetAware
from specjax.verify.follow import Follow


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 65,
  pool: int = 48,
  fanout: int = 64,
  coupled: bool | float | Sequence[float] = True,
  tau: float = 0.0,
  stacked: bool | None = None,
) -> Method:
  """Verifies `nodes` rows; the drafter is a DFlash as it is.

  Wang, Huang & Chen, arXiv:2606.00487; defaults are the authors' code's. The
  tree has weights of its own, trained for one target and drafter:
  `specjax.load(method='taps', drafter=FOLDER, scorer=FOLDER)`, the latter as
  `specjax.weights.scorer.save_scorer` writes it.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter.
    nodes: root included; the authors' budget leaves it out and is nodes - 1.
    pool: prefixes per length that the scorer judges.
    fanout: tokens per depth that these are made of.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`.
    tau: nodes of less reach per cost are left out, see `TargetAware`.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: sizes that `TargetAware` refuses, or see
      `dflash_config.from_hf`.
  """
  drafter = from_hf(drafter_config, target_config, stacked=scans(stacked))
  tree = TargetAware(
    nodes=nodes,
    depth=drafter.max_depth,
    shared_rows=drafter.shared_rows,
    pool=pool,
    fanout=fanout,
    tau=tau,
  )
  return Method(
    name='taps',
    drafter=drafter,
    tree=tree,
    verify=Follow(),
    sharpness=sharpness_of(coupled),
  )
