"""Is an answer right? Texts against a prompt set's references, by math-verify.

For sets whose answers are numbers or formulas, such as GSM8K's and MATH-500's.
A text's answer is the number of its first line `#### 42`, as GSM8K's solutions
end, else what math-verify takes for it: what is boxed, else a formula or number
near its end. An answer that the cap cut off is wrong. Needs the extra `score`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from experiments.prompts import read_answers

# A whole line, since to others these are a heading's.
MARKED = re.compile(r'^#### *(-?\$?\d[\d,.]*) *$', re.M)
BOX = '\\boxed{'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
  """References by prompt, as math-verify reads them."""

  references: Sequence[Any]
  # math-verify gives up after seconds; equal texts are scored alike even so.
  known: dict[tuple[int, str], bool] = dataclasses.field(default_factory=dict)

  def __call__(self, prompt: int, text: str) -> bool:
    """Does a text answer the prompt of this number as its reference does?"""
    from math_verify import parse, verify

    if (prompt, text) not in self.known:
      found = verify(self.references[prompt], parse(boxed(text)))
      self.known[prompt, text] = found
    return self.known[prompt, text]


def load(source: str, *, limit: int | None = None) -> Scorer:
  """A scorer of a prompt set, see `prompts.read_prompts`.

  Raises:
    ValueError: the extra is not installed, or the set has no such answers.
  """
  try:
    from math_verify import parse
  except ImportError as error:
    raise ValueError(
      f'scoring needs math-verify ({error}); pip install specjax[score], or '
      'leave score out.'
    ) from error
  answers = read_answers(source, limit=limit, without='leave score out')
  references = []
  for number, answer in enumerate(answers, start=1):
    text = boxed(answer)
    found = parse(text if BOX in text else f'{BOX}{text}}}')
    if not found:
      raise ValueError(
        f'the answer of prompt {number} of {source!r} is no number or formula: '
        f'{answer[-40:]!r}; leave score out.'
      )
    references.append(found)
  return Scorer(references=references)


def boxed(text: str) -> str:
  r"""The number of a GSM8K solution as `\boxed{...}`; any other text as it is.

  math-verify reads a box as a whole, and may take another number of a text
  without one.
  """
  found = MARKED.search(text)
  return f'{BOX}{found[1]}}}' if found else text
