"""Leaves of a tree: by the path of attributes to them, and their dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def leaves_by_path(tree: Any) -> tuple[dict[str, Any], Any]:
  """({'layers.0.mlp.gate_FD': leaf, ...}, the tree's structure)."""
  keyed, structure = jax.tree_util.tree_flatten_with_path(tree)
  name = lambda keys: jax.tree_util.keystr(keys, simple=True, separator='.')
  return {name(keys): leaf for keys, leaf in keyed}, structure


def floating(leaf: Any) -> bool:
  """Is it an array of floating-point numbers?"""
  return jnp.issubdtype(leaf.dtype, jnp.floating)


def cast(tree: Any, dtype: Any) -> Any:
  """The tree with its floating-point leaves in this dtype."""
  return jax.tree.map(lambda x: x.astype(dtype) if floating(x) else x, tree)
