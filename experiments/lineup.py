"""The decoders of a run: plain decoding first, all on the same weights."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import run
from experiments.summary import PLAIN
from specjax import api
from specjax.decoder import Decoder
from specjax.method import Method

# Of settings: lists for a whole run, and what rows call otherwise.
NOT_IN_ROWS = ('methods', 'prompts', 'concurrencies')
ADDED = ('drafter', 'vocab', 'scorer')
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
  mesh: Any = None,
) -> dict[str, Decoder]:
  """Decoders by label, all on one mesh or on one device.

  A method's label is its name, with the nodes where the name is there twice.

  Raises:
    ValueError: names that do not exist, one label for two methods, or that of
      plain decoding for another one.
  """
  for m in methods:
    if not (isinstance(m, str | Variant) or callable(m)):
      raise ValueError(
        f'methods hold {m!r}; give names, build functions or variants.'
      )
  variants = [
    m if isinstance(m, Variant) else Variant(label=_name(m), method=m)
    for m in methods
  ]
  _check(variants, drafters)
  count = collections.Counter(v.label for v in variants)
  decoders = {PLAIN: api.load(target, PLAIN, dtype=dtype, mesh=mesh)}
  for v in variants:
    if v.label == PLAIN:
      continue
    drafter = v.drafter or drafters.get(_name(v.method))
    options = {'vocab': v.vocab, 'scorer': v.scorer, 'dtype': dtype}
    decoder = api.load(target, v.method, drafter, mesh=mesh, **options)
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
  return method if isinstance(method, str) else api.name_of(method)


def sources(methods: Sequence[Builder | Variant]) -> dict[str, dict[str, str]]:
  """What variants add to their methods, by label; for the record of a run.

  The text of a wrapped method tells of no file and no list.
  """
  return {
    m.label: {name: repr(getattr(m, name)) for name in ADDED}
    for m in methods
    if isinstance(m, Variant)
  }


def opened(
  folder: pathlib.Path,
  settings: Mapping[str, Any],
  methods: Sequence[Builder | Variant],
  decoders: Mapping[str, Decoder],
) -> dict[str, Any]:
  """Makes or checks a run folder, see `run.open_folder`.

  Args:
    folder: of the run.
    settings: of the script, `methods` and `prompts` among them.
    methods: as given.
    decoders: what they are.

  Returns:
    What every row of the run repeats.
  """
  told = {
    'methods': {k: repr(d.method) for k, d in decoders.items()},
    'variants': sources(methods),
  }
  run.open_folder(folder, {**settings, **told})
  return {
    **{k: v for k, v in settings.items() if k not in NOT_IN_ROWS},
    'prompt_set': settings['prompts'],
    'versions': run.versions(),
    **run.device(),
  }


def _check(variants: Sequence[Variant], drafters) -> None:
  """Raises ValueError for a name that is none, before anything is loaded."""
  by_name = [v.method for v in variants if isinstance(v.method, str)]
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
  for v in variants:
    if v.label == PLAIN and _name(v.method) != PLAIN:
      raise ValueError(
        f'a variant is labelled {PLAIN!r}, which stands for plain decoding; '
        'give it another label.'
      )
