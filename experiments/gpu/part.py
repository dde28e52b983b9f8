"""One process of the device check.

  python -m experiments.gpu.part '{"kind": "kernels", ...}'

`experiments.gpu_check` starts it, with the arguments of `kernels` or `rounds`
as JSON, and reads its rows, a line of JSON each.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence

import jax

from experiments import run
from experiments.gpu import kernel_cases
from experiments.gpu import kernels as gpu_kernels
from experiments.gpu import rounds as gpu_rounds
from experiments.gpu.items import Row, rows_of


def kernels(
  *,
  backends: Sequence[str],
  tiny: bool,
  seed: int,
  seconds: float,
  done: Sequence[str] = (),
) -> Iterator[Row]:
  """The device and what it refuses, then the calls of some backends.

  Tiny ones that the device refuses are interpreted.
  """
  refusals = gpu_kernels.refusals()
  if not done:
    yield {
      'part': 'device',
      'versions': run.versions(),
      'refusals': refusals,
      **run.device(),
    }
  sizes = kernel_cases.TINY if tiny else kernel_cases.Sizes()
  refused = lambda b: all(x.get(b, True) is not None for x in refusals.values())
  items = itertools.chain.from_iterable(
    gpu_kernels.items(b, sizes, seed, interpret=tiny and refused(b))
    for b in backends
  )
  yield from rows_of(items, seconds=seconds, done=done)


def rounds(
  *,
  setting: int,
  tiny: bool,
  seed: int,
  seconds: float,
  programs: int,
  without: Sequence[str] = (),
  done: Sequence[str] = (),
) -> Iterator[Row]:
  """All programs of one setting, by its place among them."""
  settings = gpu_rounds.TINY if tiny else gpu_rounds.FULL
  with gpu_kernels.without(without):
    yield from rows_of(
      gpu_rounds.items(settings[setting], seed),
      seconds=seconds,
      programs=programs,
      done=done,
    )


def main(argv: Sequence[str]) -> None:
  asked = json.loads(argv[1])
  if asked.get('tiny'):  # compiling is all the work
    jax.config.update('jax_disable_most_optimizations', True)
  kind = {'kernels': kernels, 'rounds': rounds}[asked.pop('kind')]
  for row in kind(**asked):
    print(run.dumps(row), flush=True)


if __name__ == '__main__':
  main(sys.argv)
