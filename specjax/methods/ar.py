"""Plain autoregressive decoding: the loop of all methods, without a draft."""

from specjax.drafters.silent import Silent
from specjax.method import Method
from specjax.trees.chain import Chain
from specjax.verify.follow import Follow


def build(target_config=None, drafter_config=None) -> Method:
  """One row per pass."""
  return Method(
    name='ar', drafter=Silent(), tree=Chain(depth=0), verify=Follow()
  )
