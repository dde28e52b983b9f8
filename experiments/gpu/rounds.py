"""Rounds of a model's full size on the device at hand, with random weights.

A round is timed in turns with a step of plain decoding, always from the same
made-up state. Its parts are programs of their own, as in
`experiments.breakdown`; a part that several methods share is timed once.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from experiments import imagined, pieces, random_drafter
from experiments.gpu.items import Item, Row
from experiments.roofline_presets import TARGETS
from experiments.summary import PLAIN
from experiments.timing import interleaved, ratio
from specjax import api
from specjax.method import Method
from specjax.models.config import ModelConfig, tiny
from specjax.types import DecodeState, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A target at a batch size, and methods: their options by label."""

  name: str
  target: ModelConfig
  batch: int = 1
  context: int = 512  # tokens in the cache
  new_tokens: int = 256  # room behind them
  layers: int = 5  # of block drafters
  block: int = 16
  draft_vocab: int = 32000  # rows of EAGLE-3's head
  methods: Mapping[str, tuple[str, Mapping[str, Any]]]
  turns: int = 5
  inner: int = 8  # runs per turn


_METHODS = {  # the likeliest to be asked for first
  'dflash': ('dflash', {}),
  'ddtree 65': ('ddtree', {'nodes': 65}),
  'treeflash 65': ('treeflash', {'nodes': 65}),
  'eagle3': ('eagle3', {}),
  'ddtree 17': ('ddtree', {'nodes': 17}),
  'treeflash 17': ('treeflash', {'nodes': 17}),
}
_full = lambda name, batch: Setting(
  name=f'{name} batch {batch}',
  target=dataclasses.replace(TARGETS[name], dtype='bfloat16'),
  batch=batch,
  methods=_METHODS,
)
_tiny = lambda batch: Setting(
  name=f'tiny batch {batch}',
  target=tiny(layers=5, head_dim=16, dtype='bfloat16'),
  batch=batch,
  context=20,
  new_tokens=20,
  layers=1,
  block=4,
  draft_vocab=32,
  methods={
    'treeflash 5': ('treeflash', {'nodes': 5, 'plain': 2, 'fanout': 2}),
    'eagle3': ('eagle3', {'nodes': 4, 'depth': 2, 'width': 2}),
  },
  turns=1,
  inner=1,
)
FULL = (_full('qwen3-8b', 1), _full('qwen3-4b', 1), _full('qwen3-8b', 32))
TINY = (_tiny(1), _tiny(2))


class Bench:
  """Methods of one setting; arrays are made when they are first needed."""

  def __init__(self, setting: Setting, seed: int):
    self.setting, self.key = setting, jax.random.key(seed)
    configs = random_drafter.configs(
      setting.target, setting.layers, setting.block, setting.draft_vocab
    )
    configs['ddtree'] = configs['dflash']
    build = lambda name, options: api.build_of(name)(
      setting.target, configs.get(name), **options
    )
    self.methods: dict[str, Method] = {PLAIN: build(PLAIN, {})}
    for label, (name, options) in setting.methods.items():
      self.methods[label] = build(name, options)
    self._params: dict[Any, Params] = {}

  @functools.cached_property
  def target(self):
    return imagined.target(self.setting.target)

  @functools.cached_property
  def plain(self) -> Callable[[], None]:
    """A job of plain steps, which all others take turns with."""
    return self._job(pieces.whole_round(*self.args(PLAIN)))

  def args(self, label: str) -> tuple[Method, Params, DecodeState]:
    method, s = self.methods[label], self.setting
    if method.drafter not in self._params:
      params = imagined.params(method, self.target, self.key)
      self._params[method.drafter] = params
    params = self._params[method.drafter]
    return (
      method,
      params,
      imagined.state(
        method,
        params,
        batch=s.batch,
        context=s.context,
        new_tokens=s.new_tokens,
      ),
    )

  def time(self, kind: str, label: str) -> Row:
    """Milliseconds of one run, and of a plain step in the same turns."""
    s, jobs = self.setting, {PLAIN: self.plain}
    if (kind, label) != ('round', PLAIN):
      jobs[kind] = self._job(self.part(kind, label))
    seconds = interleaved(jobs, repeats=s.turns)
    ms = {
      name: [1000 * x / s.inner for x in times]
      for name, times in seconds.items()
    }
    own = ms.get(kind, ms[PLAIN])
    of_plain, low, high = ratio(own, ms[PLAIN])
    return {
      'ms': statistics.median(own),
      'plain_ms': statistics.median(ms[PLAIN]),
      'of_plain': of_plain,
      'of_plain_low': low,
      'of_plain_high': high,
    }

  def part(self, kind: str, label: str):
    """(step, kept, args) of a piece of a round."""
    args = self.args(label)
    if kind == 'round':
      return pieces.whole_round(*args)
    if kind == 'drafted':
      return pieces.drafting(*args)
    if kind == 'tree':
      return pieces.building(*args, by=imagined.outcome)
    drafted = pieces.drafted(*args, by=imagined.outcome)
    drafted = dataclasses.replace(drafted, state=args[-1])
    if kind == 'verify':
      return pieces.checking(*args, drafted)
    return pieces.committing(*args, drafted, by=imagined.outcome)

  def _job(self, part) -> Callable[[], None]:
    return pieces.job(*part, self.setting.inner)


def items(setting: Setting, seed: int) -> Iterator[Item]:
  """Whole rounds first, then the parts that hold no layers, then the others.

  'drafted' is drafter and tree; 'verify' of plain decoding is a row.
  """
  bench = Bench(setting, seed)
  plan = [
    *(('round', [x]) for x in bench.methods),
    *((kind, [x]) for x in setting.methods for kind in ('tree', 'commit')),
    *(('verify', alike) for alike in _checked_alike(bench.methods)),
    *(('drafted', [x]) for x in setting.methods),
  ]
  for kind, labels in plan:
    known = dict(part='round', setting=setting.name, kind=kind, labels=labels)
    method = bench.methods[labels[0]]
    known |= {'nodes': method.tree.nodes, 'context': setting.context}
    yield Item(
      name=f'{setting.name}: {kind} {labels[0]}',
      known=known | {'batch': setting.batch},
      run=functools.partial(bench.time, kind, labels[0]),
      full=kind not in ('tree', 'commit'),
    )


def _checked_alike(methods: Mapping[str, Method]) -> list[list[str]]:
  """Labels of methods whose target's pass is one program."""
  groups: dict[Any, list[str]] = {}
  for label, method in methods.items():
    tree = method.tree
    key = method.drafter.taps, tree.nodes, tree.ask.depth, type(tree)
    groups.setdefault(key, []).append(label)
  return list(groups.values())
