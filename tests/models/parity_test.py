"""Targets against what transformers computed from the same files.

See tests/goldens/record_transformers.py for what each folder is there for. A
rope scaling, a norm, an epsilon or a router that is left out changes the
recorded logits by more than 0.1 (asserted when recording); here 1e-4 fails.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.methods import ar
from specjax.models import cache as kv
from specjax.models import layers, transformer
from specjax.sampling import row_keys
from specjax.types import Params, Sampling
from specjax.weights.safetensors import load_target

FOLDER = pathlib.Path(__file__).parent.parent / 'goldens' / 'models'
MODELS = sorted(path.name for path in FOLDER.iterdir())
TOLERANCE = dict(rtol=0, atol=1e-4)


@functools.cache
def _golden(name: str) -> dict[str, np.ndarray]:
  return dict(np.load(FOLDER / name / 'golden.npz'))


@functools.cache
def _weights(name: str, stacked: bool = False) -> transformer.Weights:
  return load_target(FOLDER / name, dtype=jnp.float32, stacked=stacked)


@functools.partial(jax.jit, static_argnames='taps')
def _run(weights, token_BT, cache, length_B, taps=()):
  """(logits, output) of new rows behind `length` committed ones."""
  b, t = token_BT.shape
  causal_TT = jnp.tril(jnp.ones((t, t), bool))
  out = transformer.forward(
    weights,
    token_BT,
    length_B[:, None] + jnp.arange(t),
    cache,
    length_B,
    jnp.broadcast_to(causal_TT, (b, t, t)),
    taps=taps,
  )
  return layers.unembed(out.hidden_BTD, weights.head), out


def _whole(weights, token_BT, taps=()):
  b = token_BT.shape[0]
  cache = kv.empty(weights.config, b, kv.SLOT, weights.dtype)
  return _run(weights, token_BT, cache, jnp.zeros(b, jnp.int32), taps=taps)


CASES = [(name, False) for name in MODELS] + [
  (name, True) for name in ('qwen3', 'llama3', 'qwen3_moe_mixed')
]  # that the loader's stacks hold the same is tests/weights/safetensors_test


@pytest.mark.parametrize('name, stacked', CASES)
def test_logits_and_every_hidden_state(name, stacked):
  """Catches any wrong formula, and taps that are off by one layer."""
  golden, weights = _golden(name), _weights(name, stacked)
  n = weights.config.layers
  assert sum(s.attn_norm_D.shape[0] for s in weights.layers) == n
  taps = tuple(range(-1, n))
  logits, out = _whole(weights, golden['input_ids'], taps)
  np.testing.assert_allclose(logits, golden['logits'], **TOLERANCE)
  np.testing.assert_allclose(out.hidden_BTD, golden[f'hidden_{n}'], **TOLERANCE)
  tapped = np.split(np.asarray(out.taps_BTE), len(taps), axis=-1)
  for i, got in zip(taps, tapped, strict=True):
    if i == n - 1:  # recorded behind the final norm
      got = layers.rms_norm(got, weights.norm_D, weights.config.eps)
    np.testing.assert_allclose(got, golden[f'hidden_{i + 1}'], **TOLERANCE)


def test_both_spellings_of_rope_settings(tmp_path):
  """Catches a reader of `rope_scaling` only: it would find a plain rope."""
  source = FOLDER / 'llama3'
  text = (source / 'config_rope_parameters.json').read_text()
  (tmp_path / 'config.json').write_text(text)
  (tmp_path / 'model.safetensors').symlink_to(source / 'model.safetensors')
  weights = load_target(tmp_path, dtype=jnp.float32, stacked=False)
  assert weights.config == _weights('llama3').config
  assert weights.config.rope.kind == 'llama3'
  golden = _golden('llama3')
  logits, _ = _whole(weights, golden['input_ids'])
  np.testing.assert_allclose(logits, golden['logits'], **TOLERANCE)


@pytest.fixture
def fast_compile():
  """Halves the time of a test that is nothing but compilation."""
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)


@pytest.mark.parametrize('name', MODELS)
def test_greedy_text(name, fast_compile):
  """Catches positions or cache slots that drift while decoding."""
  golden = _golden(name)
  prompt, wanted = golden['greedy_prompt'], golden['greedy_ids']
  stacked = name in ('qwen3', 'qwen3_moe_mixed')
  params, method = Params(target=_weights(name, stacked)), ar.build()
  length_B = jnp.asarray([len(prompt)], jnp.int32)
  token_BT = np.zeros((1, bucket_for(len(prompt))), np.int32)
  token_BT[0, : len(prompt)] = prompt
  state = prefill(
    method,
    params,
    token_BT,
    length_B,
    row_keys([0]),
    Sampling(
      temperature_B=jnp.zeros(1),
      top_k_B=jnp.zeros(1, jnp.int32),
      top_p_B=jnp.ones(1),
      min_p_B=jnp.zeros(1),
      all_greedy=True,
      filtering=False,
    ),
    jnp.full((1, 1), -1),
    length_B + len(wanted),
    capacity=capacity_for(method, len(prompt), len(wanted)),
  )
  state, _ = decode(method, params, state)
  end = int(state.context.length_B[0])
  assert end == len(prompt) + len(wanted)
  got = np.asarray(state.context.tokens_BT)[0, len(prompt) : end]
  np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize('name', ['qwen3', 'llama_yarn', 'qwen3_moe_mixed'])
def test_cache_and_new_rows_equal_the_whole(name):
  """Rows of unlike length behind a cache whose dead slots are NaN.

  Catches a row that sees dead slots, forgets cached ones, or counts positions
  from the batch instead of from its own length.
  """
  golden, weights = _golden(name), _weights(name, stacked=True)
  token_BT, first, new = golden['input_ids'], 12, 9
  length_B = jnp.asarray([first, 7], jnp.int32)
  column_BT = np.asarray(length_B)[:, None] + np.arange(new)

  @jax.jit
  def run(weights, old_BT, new_BT):
    cache = kv.empty(weights.config, 2, kv.SLOT, weights.dtype)
    none_B = jnp.zeros(2, jnp.int32)
    cache = kv.write(
      cache, _run(weights, old_BT, cache, none_B)[1].rows, none_B
    )
    dead_BS = jnp.arange(kv.SLOT) >= length_B[:, None]
    spoil = lambda x: jnp.where(dead_BS[None, :, None, :, None], jnp.nan, x)
    return _run(weights, new_BT, jax.tree.map(spoil, cache), length_B)[0]

  new_BT = np.take_along_axis(token_BT, column_BT, axis=1)
  logits = run(weights, token_BT[:, :first], new_BT)
  wanted = np.take_along_axis(golden['logits'], column_BT[..., None], axis=1)
  np.testing.assert_allclose(logits, wanted, **TOLERANCE)
