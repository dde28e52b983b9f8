"""Any struct to a folder and back, with orbax.

Leaves are stored under their attribute paths, PRNG keys as their raw words.
What is static in a struct is not stored: it comes from the tree that says what
to restore.
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from specjax.weights.leaves import leaves_by_path


def save(
  path: str | os.PathLike, tree: Any, *, overwrite: bool = False
) -> None:
  """Writes all arrays of a struct to the folder `path`, and waits for it.

  Raises:
    ValueError: `path` exists and `overwrite` is not given.
  """
  path = pathlib.Path(path).absolute()
  if path.exists() and not overwrite:
    raise ValueError(
      f'{path} exists; choose another folder or pass overwrite=True.'
    )
  leaves = {
    name: jax.random.key_data(leaf) if _is_key(leaf) else leaf
    for name, leaf in leaves_by_path(tree)[0].items()
  }
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(path, leaves, force=overwrite)


def restore(path: str | os.PathLike, like: Any) -> Any:
  """Reads what `save` wrote into the structure of `like`.

  Args:
    path: the folder.
    like: the struct, of arrays or of `ShapeDtypeStruct`s; shapes must agree,
      dtypes are converted, shardings obeyed (none: the default device).

  Raises:
    ValueError: no checkpoint at `path`, or leaves that are missing, unexpected
      or of another shape, all in one message.
  """
  path = pathlib.Path(path).absolute()
  if not path.is_dir():
    raise ValueError(f'there is no checkpoint at {path}.')
  leaves, structure = leaves_by_path(like)
  wanted = {name: _abstract(leaf) for name, leaf in leaves.items()}
  with ocp.StandardCheckpointer() as checkpointer:
    try:
      stored = checkpointer.metadata(path).item_metadata.tree
    except (OSError, ValueError, AttributeError) as error:
      raise ValueError(f'{path} is no complete checkpoint: {error}') from error
    _check(path, stored, wanted)
    found = checkpointer.restore(path, wanted)
  return jax.tree_util.tree_unflatten(
    structure, [_wrap(leaf, found[name]) for name, leaf in leaves.items()]
  )


def _is_key(leaf: Any) -> bool:
  return hasattr(leaf, 'dtype') and jax.dtypes.issubdtype(
    leaf.dtype, jax.dtypes.prng_key
  )


def _wrap(leaf: Any, content: jax.Array) -> jax.Array:
  """Raw words as keys where `leaf` holds keys, of the same generator."""
  if not _is_key(leaf):
    return content
  # Only an array of keys, not its shape, tells the generator.
  impl = jax.random.key_impl(jnp.empty((), leaf.dtype))
  return jax.random.wrap_key_data(content, impl=impl)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
  """What orbax is asked for: shape, dtype and where to put it."""
  sharding = getattr(leaf, 'sharding', None)
  if _is_key(leaf):
    leaf, sharding = jax.eval_shape(jax.random.key_data, leaf), None
  if sharding is None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.ShapeDtypeStruct(
    jnp.shape(leaf), jnp.result_type(leaf), sharding=sharding
  )


def _check(path: pathlib.Path, stored: Any, wanted: dict[str, Any]) -> None:
  """Raises ValueError unless names and shapes agree."""
  stored = stored if isinstance(stored, dict) else {}
  problems = []
  for name in sorted(set(stored) | set(wanted)):
    if name not in wanted:
      problems.append(f'unexpected: {name}')
    elif name not in stored:
      problems.append(f'missing: {name}, expected {list(wanted[name].shape)}')
    elif tuple(stored[name].shape) != wanted[name].shape:
      problems.append(
        f'wrong shape: {name}, stored {list(stored[name].shape)}, '
        f'expected {list(wanted[name].shape)}'
      )
  if problems:
    raise ValueError(
      f'the checkpoint at {path} holds another struct:\n  '
      + '\n  '.join(problems)
    )
