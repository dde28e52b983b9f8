"""The decoders of a run: plain decoding first, all on the same weights."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.summary import PLAIN
from specjax import api
from specjax.decoder import Decoder
from specjax.method import Method

Builder = str | Callable[..., Method]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """A method with what else `specjax.load` takes, under a name of its own.

  In gin, variants stand in scopes of their own:

    evaluate.evaluate.methods = [@dflash.build, @cut/lineup.Variant()]
    cut/lineup.Variant.label = 'dflash+fr_spec'
    cut/lineup.Variant.method = @dflash.build
    cut/lineup.Variant.vocab = @fr_spec.FrSpec()
  """

  label: str
  method: Builder
  drafter: str | None = None
  vocab: Any = None
  scorer: str | None = None


def load_all(
  methods: Sequence[Builder | Variant],
  target: str,
  drafters: Mapping[str, str],
  dtype: str,
) -> dict[str, Decoder]:
  """Decoders by label.

  A method's label is its name, with the nodes where the name is there twice.

  Raises:
    ValueError: names that do not exist, or one label for two methods.
  """
  variants = [
    m
    if isinstance(m, Variant)
    else Variant(label=_name(m), method=m, drafter=drafters.get(_name(m)))
    for m in methods
  ]
  _check(methods, variants, drafters)
  count = collections.Counter(v.label for v in variants)
  decoders = {PLAIN: api.load(target, PLAIN, dtype=dtype)}
  for v in variants:
    if v.label == PLAIN:
      continue
    drafter = v.drafter or drafters.get(_name(v.method))
    options = {'vocab': v.vocab, 'scorer': v.scorer, 'dtype': dtype}
    decoder = api.load(target, v.method, drafter, **options)
    shared = decoders[PLAIN].params.target
    decoder.params = decoder.params.replace(target=shared)
    label = v.label if count[v.label] == 1 else f'{v.label}-{decoder.nodes}'
    if label in decoders:
      raise ValueError(
        f'method {v.label!r} is there twice with {decoder.nodes} nodes; give '
        'its variants labels of their own (lineup.Variant).'
      )
    decoders[label] = decoder
  return decoders


def _name(method: Builder) -> str:
  if isinstance(method, str):
    return method
  return method.__module__.split('.')[-1]


def _check(methods, variants: Sequence[Variant], drafters) -> None:
  """Raises ValueError for a name that is none, before anything is loaded."""
  by_name = [m for m in methods if isinstance(m, str)]
  names = sorted({_name(v.method) for v in variants})
  for what, given, known in (
    ('methods', by_name, api.method_names()),
    ('drafters', drafters, names),
  ):
    wrong = sorted(set(given) - set(known))
    if wrong:
      raise ValueError(
        f'{what} names {wrong[0]!r}; it can name {", ".join(known)}.'
      )
