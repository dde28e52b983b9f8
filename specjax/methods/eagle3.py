"""EAGLE-3: a drafter on the target's features, and EAGLE-2's dynamic tree."""

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checks import check_whole
from specjax.drafters.eagle3.drafter import Eagle3
from specjax.drafters.eagle3.layout import from_hf
from specjax.method import Method, sharpness_of
from specjax.models.config import ModelConfig
from specjax.rules import RULES, chain_parts
from specjax.trees.beam import Beam
from specjax.verify.follow import Follow


def build(
  target_config: ModelConfig,
  drafter_config: Mapping[str, Any],
  *,
  nodes: int = 60,
  depth: int = 8,
  width: int = 10,
  rule: str = 'follow',
  coupled: bool | float | Sequence[float] | None = None,
  aux: str | None = None,
) -> Method:
  """Verifies `nodes` rows, root included, as the authors count.

  Li et al., arXiv:2503.01840; the defaults are those of their code. `width=1`
  is a chain of nodes - 1 drafts, at most `depth`.

  Args:
    target_config: of the target.
    drafter_config: parsed config.json of the drafter, in any of its layouts.
    nodes: rows verified (total_token).
    depth: levels below the root; the authors' argument is one less.
    width: nodes continued per level, and tokens each proposes (top_k).
    rule: 'follow', or for a chain also 'rejection', see `rules.chain_parts`.
    coupled: at temperature > 0, let drafts see the verifier's noise; a number
      or one per depth is the sharpness, see `Method.sharpness`. None: with
      rule 'follow'.
    aux: how the drafter's layer ids count, 'inputs' or 'outputs'; None goes by
      where they stand, see `layer_ids.layer_inputs_of`.

  Raises:
    ValueError: no such tree or rule, or see `eagle3.layout.from_hf`.
  """
  check_whole(1, nodes=nodes, width=width)
  check_whole(0, depth=depth)
  settings = from_hf(drafter_config, target_config, aux=aux)
  if width > settings.draft_vocab:
    raise ValueError(
      f'width is {width}, and the drafter knows {settings.draft_vocab} tokens; '
      'a node has no more children than that.'
    )
  if width == 1:
    parts = chain_parts(min(depth, nodes - 1), rule, coupled)
  elif rule == 'follow':
    parts = {
      'tree': Beam(nodes=nodes, depth=depth, width=width),
      'verify': Follow(),
      'sharpness': sharpness_of(True if coupled is None else coupled),
    }
  else:
    raise ValueError(
      f'rule is {rule!r}; a tree has "follow"'
      + (', only a chain (width=1) has it.' if rule in RULES else '.')
    )
  return Method(
    name='eagle3',
    drafter=Eagle3(settings=settings, depth=parts['tree'].ask.depth),
    **parts,
  )
