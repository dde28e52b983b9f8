"""Prompt lookup decoding."""

from specjax.drafters.lookup import PromptLookup
from specjax.method import Method
from specjax.trees.chain import Chain
from specjax.verify.follow import Follow


def build(
  target_config=None, drafter_config=None, *, nodes: int = 8, ngram: int = 3
) -> Method:
  """Verifies `nodes` rows: the root and nodes - 1 copied tokens."""
  return Method(
    name='lookup',
    drafter=PromptLookup(ngram=ngram),
    tree=Chain(depth=nodes - 1),
    verify=Follow(),
  )
