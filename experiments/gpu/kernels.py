"""Kernels on the device at hand: are they right, and how fast?

The calls are in `experiments/gpu/kernel_cases.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from unittest import mock

from experiments.gpu import kernel_cases as cases
from experiments.gpu.items import Item
from experiments.gpu.kernel_cases import Sizes
from pallas_kernels import devices
from pallas_kernels.keep_rows import api as keep_rows
from pallas_kernels.keep_rows import triton as keep_triton
from pallas_kernels.top_candidates import api as top_candidates
from pallas_kernels.top_candidates import triton as top_triton
from pallas_kernels.tree_attention import api as tree_attention
from pallas_kernels.tree_attention import triton as attention_triton

OPS = {
  'tree_attention': tree_attention,
  'top_candidates': top_candidates,
  'keep_rows': keep_rows,
}
# What Pallas' interpreter runs in seconds where there is no device for it.
INTERPRETED = {
  'tree_attention': attention_triton.tree_attention_triton,
  'top_candidates': top_triton.top_candidates_triton,
  'keep_rows': keep_triton.keep_rows_triton,
}
TIMED = (cases.attention_ms, cases.candidates_ms, cases.keep_ms)


def refusals() -> dict[str, dict[str, str | None]]:
  """Why this device cannot run a backend, or None; by op and backend."""
  device = devices.known()
  return {
    op: {b.name: b.refuses_device(device) for b in api.BACKENDS}
    for op, api in OPS.items()
  }


@contextlib.contextmanager
def without(names: Collection[str]):
  """Ops do not choose these backends inside, each named as `op/backend`.

  So rounds are timed on a device that a kernel fails on.
  """
  with contextlib.ExitStack() as stack:
    for op, api in OPS.items():
      left = [b for b in api.BACKENDS if f'{op}/{b.name}' not in names]
      stack.enter_context(mock.patch.object(api, 'BACKENDS', tuple(left)))
    yield


def items(
  backend: str, sizes: Sizes, seed: int, *, interpret: bool = False
) -> Iterator[Item]:
  """The calls of a backend.

  Args:
    backend: by name; ops that lack it are left out.
    sizes: of the calls.
    seed: of all inputs.
    interpret: by Pallas' interpreter, of Triton's kernels only.
  """
  for op, api in OPS.items():
    if backend not in [b.name for b in api.BACKENDS]:
      continue
    form = functools.partial(getattr(api, op), backend=backend)
    if interpret:
      form = functools.partial(INTERPRETED[op], interpret=True)
    for case, run, args in _calls(op, sizes):
      timed = run in TIMED
      if timed and backend == 'xla':
        continue  # it stands beside the others
      known = dict(part='kernel', op=op, backend=backend, case=case)
      yield Item(
        name=f'{op}/{backend}: {case}',
        known=known | dict(timed=timed, interpreted=interpret),
        run=functools.partial(run, sizes, seed, *args, form),
      )


def _calls(op: str, sizes: Sizes) -> Iterator[tuple[str, Callable, tuple]]:
  """(what is said of it, a function of the cases, its settings)."""
  if op == 'tree_attention':
    for t, mask in sizes.checked:
      yield f'{t} rows, {mask}', cases.attention, (t, mask)
    for t in sizes.timed:
      yield f'{t} rows, {sizes.slots} slots', cases.attention_ms, (t,)
  elif op == 'top_candidates':
    for w, c in sizes.best:
      yield f'{w} rows, best {c}', cases.candidates, (w, c)
    w, c = sizes.best[-1]
    name = f'{w} rows, best {c} of {sizes.vocab}'
    yield name, cases.candidates_ms, (w, c)
  else:
    yield '16 rows', cases.keep, ()
    yield f'16 rows, {sizes.layers} layers', cases.keep_ms, ()
