"""CaDDTree: DDTree with as many nodes as pay on this device."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checks import whole
from specjax.drafters.dflash_config import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.models.transformer import scans
from specjax.trees.best_first import BestFirst
from specjax.trees.costed import Costed, LatencyTable
from specjax.verify.follow import Follow


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  latency: str | pathlib.Path | LatencyTable | None = None,
  sizes: Sequence[int] | None = None,
  nodes: int | None = None,
  coupled: bool | float | Sequence[float] = True,
  stacked: bool | None = None,
) -> Method:
  """Each round verifies the size that promises most tokens per second.

  arXiv:2606.01813, see `trees.costed`; the drafter is a DFlash as it is.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter.
    latency: a table of this target on this device, or its file, written by
      `python -m experiments.profile_latency`. Nothing stands in for it.
    sizes: rows to choose among, root included; None takes all of the table.
    nodes: the largest size; of `sizes` only those below it stay.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`.
    stacked: scan over the drafter's layers; None: not on CPU.

  Raises:
    ValueError: no table, one of something else or without some size, or see
      `dflash_config.from_hf`.
  """
  if latency is None:
    raise ValueError(
      'caddtree needs measured costs of this target on this device; run '
      '`python -m experiments.profile_latency --out=FILE` and pass '
      'latency=FILE.'
    )
  drafter = from_hf(drafter_config, target_config, stacked=scans(stacked))
  if not isinstance(latency, LatencyTable):
    latency = LatencyTable.read(latency)
  latency.check(target_config)
  sizes = latency.sizes if sizes is None else sizes
  if not isinstance(sizes, Sequence) or not all(map(whole, sizes)):
    raise ValueError(
      f'sizes are {sizes!r}; give a list of whole numbers, or None.'
    )
  sizes = tuple(sorted({int(n) for n in sizes}))
  if nodes is not None:
    sizes = (*(n for n in sizes if n < nodes), int(nodes))
  if not sizes:
    raise ValueError('sizes are empty; give at least one, or None.')
  tree = BestFirst(
    nodes=sizes[-1],
    depth=drafter.max_depth,
    fanout=target_config.vocab,  # no rank is cut but by the budget
    shared_rows=drafter.shared_rows,
  )
  return Method(
    name='caddtree',
    drafter=drafter,
    tree=Costed(tree=tree, sizes=sizes, table=latency),
    verify=Follow(),
    sharpness=sharpness_of(coupled),
  )
