"""Arrays over several devices: which of their axes lie along which of a mesh.

The letters that end an array's name (see `specjax.types`) are its logical axes.
One table says which of them are split, and along what; all else is whole on
each device, and XLA's own SPMD partitions the program. Without a mesh nothing
here does anything.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from specjax.checks import check_whole

AXES = ('data', 'tensor', 'expert')
# A mesh axis splits one letter of an array. Of the axes named here a letter
# takes as many, in this order, as divide it: experts that are split leave the
# width of their mlps to `tensor`; dense matrices lie along both.
TABLE = {
  'B': ('data',),
  'X': ('expert',),
  'V': ('tensor', 'expert'),
  'F': ('tensor', 'expert'),
  'O': ('tensor', 'expert'),  # whole heads
  'K': ('tensor', 'expert'),
}
# Matrices of a target, and of drafters that are built from the same layers. A
# router is small, and every shard wants the whole of it.
MATRICES = ('VD', 'OD', 'DO', 'FD', 'DF', 'XDF', 'XFD')
STATE = ('B', 'K')  # letters of a decode state that are split


def make_mesh(data: int = 1, tensor: int = 1, expert: int = 1) -> Mesh:
  """The devices as a mesh, for `specjax.load(mesh=...)`.

  Args:
    data: parts of the batch.
    tensor: parts of heads, mlps and vocabulary, and of each expert.
    expert: parts of the experts; of what has none, another factor of `tensor`.

  Raises:
    ValueError: more devices than there are; or fewer, where other processes
      would be left without one.
  """
  sizes = dict(zip(AXES, (data, tensor, expert), strict=True))
  check_whole(1, **sizes)
  need, devices = math.prod(sizes.values()), jax.devices()
  if need > len(devices):
    raise ValueError(
      f'a mesh of {_told(sizes)} needs {need} devices and there are '
      f'{len(devices)} ({devices[0].device_kind}); give sizes whose product is '
      f'{len(devices)} at most.'
    )
  if jax.process_count() > 1 and need < len(devices):
    raise ValueError(
      f'a mesh of {_told(sizes)} takes {need} of the {len(devices)} devices of '
      f'{jax.process_count()} processes; give sizes whose product is '
      f'{len(devices)}, so that each process takes part.'
    )
  return jax.make_mesh(
    tuple(sizes.values()),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
    devices=devices[:need],
  )


def check_mesh(mesh: Any) -> None:
  """Raises ValueError unless it is None, or a mesh as `make_mesh` makes."""
  if mesh is None:
    return
  if not isinstance(mesh, Mesh) or mesh.axis_names != AXES:
    raise ValueError(
      f'mesh is {mesh!r}; give specjax.sharding.make_mesh(data=..., '
      'tensor=..., expert=...), or None.'
    )


def active() -> Any:
  """The mesh that is being traced for, or None where one device does it all."""
  mesh = jax.sharding.get_abstract_mesh()
  return mesh if mesh.axis_names == AXES and mesh.size > 1 else None


def axes_of(
  letter: str, count: int, mesh: Any, taken: tuple[str, ...] = ()
) -> tuple[str, ...]:
  """Mesh axes along which `count` entries of a letter can be split evenly."""
  found, parts = (), 1
  for axis in TABLE.get(letter, ()):
    if axis in taken:
      continue
    parts *= mesh.shape[axis]
    if count % parts:
      break
    found += (axis,)
  return found


def spec_of(
  legend: str, shape: tuple[int, ...], mesh: Any, head_dim: int = 1
) -> P:
  """How an array lies on a mesh.

  Args:
    legend: letters of its last axes; a stack's may stand before them.
    shape: of the array.
    mesh: abstract or not.
    head_dim: entries of O that stay together.
  """
  spec: list[Any] = [None] * len(shape)
  taken: tuple[str, ...] = ()
  for letter in TABLE:
    if letter not in legend:
      continue
    at = len(shape) - len(legend) + legend.index(letter)
    unit = head_dim if letter == 'O' else 1
    found = axes_of(letter, shape[at] // unit, mesh, taken)
    taken += found
    spec[at] = found or None
  return P(*spec)


def head_dim(drafter: Any, params: Any, target: Any) -> int:
  """Width of a drafter's heads, which its cache tells; 1 without a cache."""
  state = jax.eval_shape(lambda *x: drafter.start(*x, 1, 128), params, target)
  leaves, _ = jax.tree_util.tree_flatten_with_path(state)
  widths = [x.shape[-1] for path, x in leaves if _legend(path) == 'LBKSH']
  return widths[0] if widths else 1


def planned(shapes: Any, mesh: Mesh | None, head_dim: int) -> Any:
  """A tree of parameters' shapes, each with its sharding.

  Args:
    shapes: tree of arrays or of `ShapeDtypeStruct`s.
    mesh: None leaves the tree as it is.
    head_dim: width of the heads of these parameters.
  """
  if mesh is None:
    return shapes

  def plan(path, x):
    legend = _legend(path)
    spec = P()
    if legend in MATRICES:
      spec = spec_of(legend, x.shape, mesh, head_dim)
    sharding = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  return jax.tree_util.tree_map_with_path(plan, shapes)


def placed(tree: Any, mesh: Mesh | None, head_dim: int) -> Any:
  """Parameters where `planned` wants them; those that are there do not move."""
  if mesh is None:
    return tree
  plans = planned(tree, mesh, head_dim)
  return jax.tree.map(lambda x, plan: _put(x, plan.sharding), tree, plans)


def placed_rows(tree: Any, mesh: Mesh | None) -> Any:
  """Arrays that begin with the batch, which is split where that is even."""
  if mesh is None:
    return tree
  put = lambda x: _put(x, NamedSharding(mesh, spec_of('B', x.shape[:1], mesh)))
  return jax.tree.map(put, tree)


def constrained(state: Any) -> Any:
  """A state, or a part of one, of which batch and heads are split.

  Said wherever a state is made, so that programs that hand it on agree.
  """
  mesh = active()
  if mesh is None:
    return state

  def hold(path, x):
    legend = ''.join(s if s in STATE else '.' for s in _legend(path))
    return lax.with_sharding_constraint(x, spec_of(legend, x.shape, mesh))

  return jax.tree_util.tree_map_with_path(hold, state)


def on_host(tree: Any) -> Any:
  """NumPy arrays, whole: parts that other processes hold are fetched.

  Then it is a collective: every process has to call it.
  """
  if all(
    x.is_fully_addressable or x.is_fully_replicated
    for x in jax.tree.leaves(tree)
  ):
    return jax.device_get(tree)
  return multihost_utils.process_allgather(tree, tiled=True)


def _put(x: Any, sharding: NamedSharding) -> Any:
  """`jax.device_put`, also where other processes hold some of the devices.

  There it wants keys in another form, and compares what processes give array by
  array; here each of them is trusted to give the same.
  """
  if sharding.is_fully_addressable:
    return jax.device_put(x, sharding)
  if not x.is_fully_addressable:
    return jax.jit(lambda x: x, out_shardings=sharding)(x)
  if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
    words = _put(jax.random.key_data(x), sharding)
    return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
  content = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, content.__getitem__)


def _legend(path: Any) -> str:
  name = jax.tree_util.keystr(path[-1:], simple=True)
  return name.rpartition('_')[2] if '_' in name else ''


def _told(sizes: dict[str, int]) -> str:
  return ' x '.join(f'{name}={n}' for name, n in sizes.items())
