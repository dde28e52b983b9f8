"""Leaves of a tree by the path of attributes that leads to them."""

from __future__ import annotations

from typing import Any

import jax


def leaves_by_path(tree: Any) -> tuple[dict[str, Any], Any]:
  """({'layers.0.mlp.gate_FD': leaf, ...}, the tree's structure)."""
  keyed, structure = jax.tree_util.tree_flatten_with_path(tree)
  name = lambda keys: jax.tree_util.keystr(keys, simple=True, separator='.')
  return {name(keys): leaf for keys, leaf in keyed}, structure
