"""What a DFlash drafter is: read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.checks import check_whole, whole
from specjax.drafters.dflash import DFlash
from specjax.models.config import ModelConfig
from specjax.models.config import from_hf as model_from_hf

ARCHITECTURES = ('DFlashDraftModel', 'TreeFlashDraftModel')


def from_hf(
  config: Mapping[str, Any],
  target_config: ModelConfig,
  *,
  stacked: bool = False,
) -> DFlash:
  """Reads a drafter's parsed config.json.

  Args:
    config: `dflash_config` holds the method's own keys; `block_size` may stand
      there or on top, rope settings in either of transformers' spellings.
    target_config: what it will draft for.
    stacked: scan over the layers.

  Raises:
    ValueError: a setting that is not implemented, or a drafter that does not
      fit the target; names both values.
  """
  own = config.get('dflash_config') or {}
  if not isinstance(own, Mapping):
    raise ValueError(f'dflash_config is {own!r}; give settings by name.')
  get = lambda key: own.get(key, config.get(key))
  names = config.get('architectures') or ARCHITECTURES
  if names[0] not in ARCHITECTURES:
    raise ValueError(
      f'architecture {names[0]!r} is no DFlash drafter; those are '
      f'{", ".join(ARCHITECTURES)}.'
    )
  if get('projector_type') not in (None, 'dflash'):
    raise ValueError(
      f'projector_type {get("projector_type")!r} is another method; only '
      "'dflash' is supported."
    )
  for key in ('block_size', 'mask_token_id'):
    if get(key) is None:
      raise ValueError(f'the drafter has no {key}; give a DFlash config.json.')
  check_whole(2, block_size=get('block_size'))
  check_whole(0, mask_token_id=get('mask_token_id'))
  model = model_from_hf({**config, 'architectures': ['Qwen3ForCausalLM']})
  taps = get('target_layer_ids')
  if taps is None:
    taps = default_taps(target_config.layers, model.layers)
  if not isinstance(taps, (list, tuple)) or not all(map(whole, taps)):
    raise ValueError(
      f'target_layer_ids is {taps!r}; give a list of whole numbers.'
    )
  drafter = DFlash(
    config=model,
    block=get('block_size'),
    mask_id=get('mask_token_id'),
    taps=tuple(taps),
    causal=_causal(own),
    stacked=stacked,
  )
  _check_fit(drafter, get, target_config)
  return drafter


def _causal(own: Mapping[str, Any]) -> bool:
  """What either spelling of the key says; without one, no."""
  said = {k: own.get(k) for k in ('causal_head', 'causal')}
  values = [x for x in said.values() if x is not None]
  if any(not isinstance(x, bool) or x != values[0] for x in values):
    raise ValueError(f'dflash_config has {said}; give one key, true or false.')
  return any(values)


def default_taps(target_layers: int, layers: int) -> tuple[int, ...]:
  """Layers spread from the second to the third last, halves rounded to even."""
  if layers == 1:
    return (target_layers // 2,)
  step = (target_layers - 4) / (layers - 1)
  return tuple(round(1 + i * step) for i in range(layers))


def _check_fit(drafter: DFlash, get, target: ModelConfig) -> None:
  width, layers = drafter.config.width, target.layers
  pairs = (
    ('hidden_size', width, target.width),
    ('target_hidden_size', get('target_hidden_size'), target.width),
    ('vocab_size', drafter.config.vocab, target.vocab),
    ('num_target_layers', get('num_target_layers'), layers),
  )
  for key, given, wanted in pairs:
    if given not in (None, wanted):
      raise ValueError(
        f'the drafter has {key}={given}, the target {wanted}; choose a drafter '
        'trained for this target.'
      )
  taps = drafter.taps
  # The last layer's output is ambiguous: the reference code reads it normed.
  bad = [i for i in taps if not 0 <= i < layers - 1]
  if bad or not taps or len(set(taps)) != len(taps):
    raise ValueError(
      f'target_layer_ids {list(taps)} do not fit a target of {layers} layers: '
      f'name layers 0 to {layers - 2}, each once.'
    )
  if not 0 <= drafter.mask_id < target.vocab:
    raise ValueError(
      f'mask_token_id {drafter.mask_id} is no row of the target, which has '
      f'0 to {target.vocab - 1}.'
    )
