"""Which target layers an EAGLE-3 drafter fuses.

Two ways of counting are in use for the very same tensors. Ids are *inputs* of
layers in the authors' code, in vLLM and in speculators: the residual stream
that enters layer i. They are *outputs* in SpecForge, SGLang, ModelOpt and
AngelSlim: what leaves layer i, so that i + 1 is entered. A list read the wrong
way changes no text, only how much of it is accepted; hence what is in doubt is
an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specjax.checks import whole

KEY = 'eagle_aux_hidden_state_layer_ids'
READINGS = ('inputs', 'outputs')


def rule(layers: int) -> tuple[int, int, int]:
  """The authors' fixed choice, as inputs."""
  return (2, layers // 2, layers - 3)


def layer_inputs_of(
  config: Mapping[str, Any], layers: int, aux: str | None
) -> tuple[int, ...]:
  """The fused layers, as inputs; `layers` of the target is the final stream.

  Without ids it is the authors' rule. Ids in `eagle_config` are outputs, ids on
  top are inputs, unless `aux` says otherwise. Published files break that: a
  list that is the rule itself under the other reading is refused, as are two
  lists that disagree. A fourth id, the final stream, is what speculators train
  the head on and is never fused.

  Raises:
    ValueError: no reading, or more than one; layers that are not there.
  """
  if aux not in (None, *READINGS):
    raise ValueError(f'aux is {aux!r}; choose one of {", ".join(READINGS)}.')
  found = _found(config)
  if not found:
    return _by_rule(layers, aux)
  readings = {}
  for reading, ids in found.items():
    reading = aux or reading
    inputs = tuple(i + (reading == 'outputs') for i in ids)
    if len(inputs) == 4 and inputs[-1] == layers:
      inputs = inputs[:-1]
    readings[inputs] = (reading, ids)
  if len(readings) > 1:
    raise ValueError(
      f'the drafter has {KEY} twice: on top {list(found["inputs"])}, the '
      f'inputs of layers, and in eagle_config {list(found["outputs"])}, their '
      'outputs (inputs of the next); these differ. Remove the wrong one.'
    )
  ((inputs, (reading, ids)),) = readings.items()
  _check(inputs, layers, f'{list(ids)}, read as {reading}')
  other = tuple(i + (reading == 'inputs') for i in ids)
  if aux is None and len(inputs) == 3 and other[:3] == rule(layers):
    raise ValueError(
      f'{KEY} {list(ids)} stands where {reading} of layers are listed, yet '
      f'for a target of {layers} layers it is the usual choice if read as '
      f"{_other(reading)}. Say which it is: aux='inputs' or aux='outputs'."
    )
  return inputs


def _other(reading: str) -> str:
  return READINGS[reading == 'inputs']


def _found(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
  """Ids by how their place reads them."""
  nested = config.get('eagle_config') or {}
  if not isinstance(nested, Mapping):
    raise ValueError(f'eagle_config is {nested!r}; give settings by name.')
  if nested.get('use_aux_hidden_state') is False:
    raise ValueError(
      'use_aux_hidden_state is false: a drafter that reads the last layer '
      'alone is EAGLE-1 or 2; only EAGLE-3 is supported.'
    )
  places = {'inputs': config.get(KEY), 'outputs': nested.get(KEY)}
  for ids in places.values():
    listed = isinstance(ids, (list, tuple)) and all(map(whole, ids))
    if ids is not None and not listed:
      raise ValueError(f'{KEY} is {ids!r}; give a list of whole numbers.')
  return {k: tuple(ids) for k, ids in places.items() if ids is not None}


def _by_rule(layers: int, aux: str | None) -> tuple[int, ...]:
  if aux is not None:
    raise ValueError(
      f'aux={aux!r} says how {KEY} counts, and the drafter has none; leave '
      'aux out.'
    )
  inputs = rule(layers)
  if not 0 <= inputs[0] < inputs[1] < inputs[2]:
    raise ValueError(
      f'the usual layers 2, N / 2 and N - 3 are {list(inputs)} in a target of '
      f'{layers}, not three in order; give {KEY} in the config.json.'
    )
  return inputs


def _check(inputs: tuple[int, ...], layers: int, what: str) -> None:
  bad = [i for i in inputs if not 0 <= i <= layers]
  if bad or not inputs or list(inputs) != sorted(set(inputs)):
    raise ValueError(
      f'{KEY} {what}, does not fit a target of {layers} layers: name inputs 0 '
      f'to {layers} (or outputs -1 to {layers - 1}), rising.'
    )
