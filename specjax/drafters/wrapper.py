"""What a drafter around another one leaves as it is."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.models.names import Tensor
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapper:
  """The facts of the inner drafter, which are also its wrapper's.

  A checkpoint holds the inner drafter, so `init` and `tensors` are its own.
  """

  inner: Any  # a Drafter

  @property
  def taps(self) -> tuple[int, ...]:
    return self.inner.taps

  @property
  def shared_rows(self) -> bool:
    return self.inner.shared_rows

  @property
  def max_depth(self) -> int | None:
    return self.inner.max_depth

  def init(self, key: Array, target_config: Any) -> Any:
    return self.inner.init(key, target_config)

  def tensors(self) -> list[Tensor]:
    return self.inner.tensors()
