"""What EAGLE-3 checkpoints call their tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIXES = ('model.', 'draft_model.', 'eagle_module.')
FIRST, SPELT_OUT = 'midlayer.', 'layers.0.'
# A trainer's copies of the target, buffers, and the mask of parallel drafts.
IGNORED = (
  '*rotary_emb.inv_freq',
  '*verifier_lm_head*',
  '*verifier_norm*',
  '*mask_hidden*',
)


def canonical(stored: str) -> str:
  """The authors' name of a stored tensor."""
  name = stored
  while any(name.startswith(prefix) for prefix in PREFIXES):
    name = name.split('.', 1)[1]
  if name.startswith(SPELT_OUT):
    name = FIRST + name.removeprefix(SPELT_OUT)
  name = re.sub(r'^fc_norms\.', 'fc_norm.', name)
  return 'd2t' if name == 'draft_id_to_target_id' else name


def by_canonical(stored: Iterable[str]) -> dict[str, str]:
  """Stored names by the authors' ones.

  Raises:
    ValueError: two tensors that would be one.
  """
  names: dict[str, str] = {}
  for name in stored:
    known = names.setdefault(canonical(name), name)
    if known != name:
      raise ValueError(
        f'the drafter holds {known} and {name}, which are two spellings of '
        'one tensor; keep the right one.'
      )
  return names
