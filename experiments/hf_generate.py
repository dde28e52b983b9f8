"""transformers' own greedy generation, to be compared with; float32, batch 1.

Needs the extra `peers`: what loads or generates raises ImportError without it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

GREEDY = 'transformers greedy'
LOOKUP = 'transformers prompt lookup'
ASSISTED = 'transformers assisted'

Generate = Callable[[Sequence[int]], list[int]]


def versions() -> dict[str, str]:
  """Of the libraries.

  Raises:
    ValueError: one is not installed.
  """
  try:
    return {x: importlib.metadata.version(x) for x in ('torch', 'transformers')}
  except importlib.metadata.PackageNotFoundError as error:
    raise ValueError(
      f'{error.name} is not installed; pip install specjax[peers].'
    ) from error


def load(folder: str | pathlib.Path, stop_ids: Sequence[int] = ()) -> Any:
  """The model of a folder, set to decode greedily.

  Args:
    folder: with config.json and weights.
    stop_ids: ids that end a text; () takes none.
  """
  import torch
  from transformers import AutoModelForCausalLM, GenerationConfig

  model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
  # The checkpoint's own settings may sample, or penalise repetition.
  model.generation_config = GenerationConfig(
    do_sample=False, eos_token_id=list(stop_ids) or None, pad_token_id=0
  )
  return model


def generator(model: Any, new: int, **how: Any) -> Generate:
  """A function of a prompt's ids to those behind it, an end id included.

  Args:
    model: from `load`.
    new: tokens at most.
    **how: what `generate` takes for speculation, such as `assistant_model`.
  """
  import torch

  def generate(ids: Sequence[int]) -> list[int]:
    tokens = torch.tensor([list(ids)])
    with torch.inference_mode():
      out = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=new,
        **how,
      )
    # Speculative ones of 4.57 may give some tokens more than they were asked.
    return out[0, len(ids) :][:new].tolist()

  return generate


def generators(
  target: pathlib.Path,
  assistant: pathlib.Path | None,
  *,
  new: int,
  lookup: int,
  stop_ids: Sequence[int],
  threads: int,
) -> dict[str, Generate]:
  """Plain greedy generation, and the speculative ones, by name.

  Args:
    target: folder.
    assistant: folder of the drafter of assisted generation; None goes without.
    new: tokens at most.
    lookup: tokens that prompt lookup copies at most.
    stop_ids: as for `load`.
    threads: of torch.
  """
  import torch

  torch.set_num_threads(threads)
  of = functools.partial(generator, load(target, stop_ids), new)
  found = {GREEDY: of(), LOOKUP: of(prompt_lookup_num_tokens=lookup)}
  if assistant is not None:
    found[ASSISTED] = of(assistant_model=load(assistant, stop_ids))
  return found
