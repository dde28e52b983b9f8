"""Decodes one batch of prompts with several methods that take turns."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.summary import PLAIN
from specjax import metrics
from specjax.decode.prefill import bucket_for, capacity_for
from specjax.decoder import Decoder
from specjax.generation import Generation

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
  """Decoders by label and what is the same for all batches."""

  decoders: Mapping[str, Decoder]
  prompts: Sequence[Sequence[int]]
  generate: Mapping[str, Any]  # arguments of `Decoder.generate`
  seed: int  # prompt i is decoded with seed + i
  repeats: int
  constants: Mapping[str, Any]  # copied into every row
  warm: set[Any] = dataclasses.field(default_factory=set)

  def decode(self, label: str, part: range) -> Generation:
    """The prompts of `part` in one call."""
    return self.decoders[label].generate(
      [self.prompts[i] for i in part],
      seed=[self.seed + i for i in part],
      **self.generate,
    )


def measure(bench: Bench, part: range, rows: Sequence[Row]) -> list[Row]:
  """Rows of the prompts of `part` that `rows` does not have yet.

  Methods take turns `repeats` times, in another order each time, and the median
  counts: a slow minute of the machine then hits all of them alike. A program
  runs once before it is timed.
  """
  have = {(row['label'], row['prompt']): row for row in rows}
  labels = [
    label
    for label in bench.decoders
    if any((label, i) not in have for i in part)
  ]
  for label in labels:
    warm_up(bench, label, part)
  outs: dict[str, list[Generation]] = {label: [] for label in labels}
  for repeat in range(bench.repeats):
    turn = (part.start + repeat) % max(len(labels), 1)
    for label in labels[turn:] + labels[:turn]:
      outs[label].append(bench.decode(label, part))

  plain = {i: row['ids'] for (label, i), row in have.items() if label == PLAIN}
  if PLAIN in outs:
    plain |= dict(zip(part, outs[PLAIN][0].tokens, strict=True))
  made = []
  for label in labels:
    for at, i in enumerate(part):
      if (label, i) not in have:
        row = _row(bench, label, outs[label], at)
        row |= {'prompt': i, 'equal': row['ids'] == plain[i]}
        made.append({**bench.constants, **row})
  return made


def warm_up(bench: Bench, label: str, part: range) -> None:
  """Compiles and runs what this batch needs, where it is new."""
  settings, method = bench.generate, bench.decoders[label].method
  longest = max(settings['pad_to'], *(len(bench.prompts[i]) for i in part))
  capacity = capacity_for(method, longest, settings['max_new_tokens'])
  program = (label, len(part), bucket_for(longest), capacity)
  if program not in bench.warm:
    bench.decode(label, part)
    bench.warm.add(program)


def _row(bench: Bench, label: str, outs: list[Generation], at: int) -> Row:
  """Figures of one row of a batch; a batch's seconds are shared equally."""
  decoder, out = bench.decoders[label], outs[0]
  share = lambda name: (
    statistics.median(getattr(o.stats, name) for o in outs) / len(out.tokens)
  )
  emitted, walks = len(out.tokens[at]) - 1, out.accepted[at]
  return {
    **facts(label, decoder),
    'prompt_tokens': out.prompt_tokens[at],
    'tokens': emitted + 1,
    'rounds': len(walks),
    'mean_accepted': metrics.mean_accepted(emitted, len(walks)),
    'tau_paper': metrics.tau_paper([walks]),
    'prefill_s': share('prefill_s'),
    'decode_s': share('decode_s'),
    'tokens_per_s': emitted / share('decode_s'),
    'finish_reason': out.finish_reason[at],
    'walks': walks,
    'ids': out.tokens[at],
    'text': out.text[at] if out.text else None,
  }


def facts(label: str, decoder: Decoder) -> Row:
  """What rows of every measurement say of a method."""
  return {
    'label': label,
    'method': decoder.method.name,
    'nodes': decoder.nodes,
    'max_depth': decoder.method.path_rows - 1,
    'lossless': decoder.method.verify.lossless,
    'dtype': decoder.dtype,
  }
