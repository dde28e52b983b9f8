"""New drafters: config.json, and the parameters they begin with."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax

from specjax.checks import check_whole
from specjax.drafters.eagle3.fresh import config_of, fresh
from specjax.method import Method
from specjax.models.config import ModelConfig, to_hf
from specjax.models.transformer import Weights
from specjax.types import Array
from specjax.vocab.fr_spec import FrSpec
from specjax.vocab.ranks import chosen
from specjax.weights.parts import load_drafter


def spread(target_layers: int, count: int) -> list[int]:
  """Target layers to read, from the second to the third last."""
  step = (target_layers - 4) / max(count - 1, 1)
  return sorted({round(1 + i * step) for i in range(count)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """A DFlash, TreeFlash or JetSpec drafter.

  `backbone` is a trained DFlash of this shape that a TreeFlash begins from.
  """

  layers: int = 2
  block: int = 16
  mask_id: int | None = None  # None: the vocabulary's last row
  taps: tuple[int, ...] | None = None  # None: spread, one more than layers
  mlp: int | None = None  # None: the target's
  causal: bool = False
  treeflash: bool = False
  backbone: str | None = None

  def __post_init__(self):
    check_whole(1, layers=self.layers)
    check_whole(2, block=self.block)
    if self.backbone is not None and not self.treeflash:
      raise ValueError('only a TreeFlash has a backbone; set treeflash=True.')

  def config(self, target: ModelConfig) -> dict[str, Any]:
    """config.json for this target."""
    n, taps = target.layers, self.taps
    own = {
      'mask_token_id': (
        target.vocab - 1 if self.mask_id is None else self.mask_id
      ),
      'target_layer_ids': (
        spread(n, self.layers + 1) if taps is None else list(taps)
      ),
    }
    kind = 'TreeFlashDraftModel' if self.treeflash else 'DFlashDraftModel'
    return {
      **_shared(target),
      'architectures': [kind],
      'intermediate_size': self.mlp or target.mlp,
      'num_hidden_layers': self.layers,
      'num_target_layers': n,
      'block_size': self.block,
      'rope_theta': target.rope.theta,
      'dflash_config': own | ({'causal_head': True} if self.causal else {}),
      **(
        {'treeflash_config': {'ar_approximation': 'swiglu'}}
        if self.treeflash
        else {}
      ),
    }

  def init(self, method: Method, target: Weights, key: Array) -> Any:
    """Random parameters, a given backbone's apart.

    The last norm begins as the target's, whose head reads what it returns.
    """
    params = method.drafter.init(key, target.config)
    if not self.treeflash:
      return params.replace(norm_D=target.norm_D)
    if self.backbone is None:
      backbone = params.backbone.replace(norm_D=target.norm_D)
      return params.replace(backbone=backbone)
    inner, folder = method.drafter.backbone, pathlib.Path(self.backbone)
    return params.replace(
      backbone=load_drafter(inner, folder, target.config, 'float32')
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3:
  """An EAGLE-3 drafter of one layer; head and norm begin as the target's.

  `vocab` is the list of tokens that its head has rows for.
  """

  mlp: int | None = None
  vocab: FrSpec | None = None

  def config(self, target: ModelConfig) -> dict[str, Any]:
    id_V = self._ids(target)
    rows = target.vocab if id_V is None else len(id_V)
    return config_of(target, rows) | self._changes(target)

  def init(self, method: Method, target: Weights, key: Array) -> Any:
    id_V, changes = self._ids(target.config), self._changes(target.config)
    _, params = fresh(target, key, id_V=id_V, changes=changes)
    return method.drafter.bind(params, target)

  def _ids(self, target: ModelConfig) -> Any:
    if self.vocab is None:
      return None
    return chosen(self.vocab.ranks, self.vocab.size, target.vocab)

  def _changes(self, target: ModelConfig) -> dict[str, Any]:
    return {'intermediate_size': self.mlp or target.mlp}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small:
  """An independent drafter: the target's layout with fewer, narrower layers."""

  layers: int = 2
  width: int | None = None
  mlp: int | None = None
  q_heads: int | None = None
  kv_heads: int | None = None
  head_dim: int | None = None

  def config(self, target: ModelConfig) -> dict[str, Any]:
    changes = {
      f.name: getattr(self, f.name)
      for f in dataclasses.fields(self)
      if getattr(self, f.name) is not None
    }
    sparse = tuple(i for i in target.sparse_layers if i < self.layers)
    return to_hf(dataclasses.replace(target, sparse_layers=sparse, **changes))

  def init(self, method: Method, target: Weights, key: Array) -> Any:
    return method.drafter.init(key, target.config)


def _shared(target: ModelConfig) -> dict[str, Any]:
  return {
    'vocab_size': target.vocab,
    'hidden_size': target.width,
    'num_attention_heads': target.q_heads,
    'num_key_value_heads': target.kv_heads,
    'head_dim': target.head_dim,
    'rms_norm_eps': target.eps,
    'max_position_embeddings': target.max_length,
    'torch_dtype': target.dtype,
  }


def key_of(seed: int) -> Array:
  """Of a new drafter's parameters."""
  return jax.random.fold_in(jax.random.key(seed), 1)
