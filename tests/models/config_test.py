"""config.json: what is not implemented is refused by name, never ignored."""

import json
import pathlib

import pytest

from specjax.models import config as configs
from specjax.models.rope import Rope

FOLDER = pathlib.Path(__file__).parent.parent / 'goldens' / 'models'
PATHS = sorted(FOLDER.glob('*/config*.json'))
QWEN3 = {
  'architectures': ['Qwen3ForCausalLM'],
  'vocab_size': 96,
  'hidden_size': 32,
  'intermediate_size': 64,
  'num_hidden_layers': 3,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 16,
}
LLAMA3 = {
  'rope_type': 'llama3',
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 32,
}


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'architectures': ['MistralForCausalLM']}, 'MistralForCausalLM'),
    ({'architectures': None}, 'architecture'),
    ({'rope_scaling': {'rope_type': 'longrope'}}, 'longrope'),
    ({'rope_scaling': {'type': 'dynamic', 'factor': 2.0}}, 'dynamic'),
    ({'rope_parameters': {'rope_type': 'su'}}, "'su'"),
    ({'attention_bias': True}, 'attention_bias'),
    ({'mlp_bias': True}, 'mlp_bias'),
    ({'use_sliding_window': True, 'sliding_window': 64}, 'sliding_window'),
    (
      {'layer_types': ['full_attention', 'sliding_attention']},
      'layer_types.*sliding_attention',
    ),
    ({'hidden_act': 'gelu'}, 'hidden_act'),
    ({'partial_rotary_factor': 0.5}, 'partial_rotary_factor'),
    ({'quantization_config': {'bits': 4}}, 'quantization_config'),
    ({'hidden_size': '64'}, "hidden_size is '64'; give a whole number"),
    ({'head_dim': 0}, 'head_dim is 0'),
    ({'rms_norm_eps': 0}, 'rms_norm_eps is 0'),
    ({'rope_theta': -1.0}, 'rope_theta is -1.0'),
    ({'rope_scaling': {'type': 'linear', 'factor': 'x'}}, "factor is 'x'"),
    ({'dtype': 'int8'}, "dtype is 'int8'; supported are float32"),
    ({'num_key_value_heads': 3}, '4 query heads.*3 key/value heads'),
    (
      {'architectures': ['Qwen3MoeForCausalLM']},
      'lacks num_experts, num_experts_per_tok, moe_intermediate_size',
    ),
  ],
)
def test_refused_by_name(changes, words):
  """Catches a setting that would change logits and is passed over."""
  configs.from_hf(QWEN3)
  with pytest.raises(ValueError, match=words):
    configs.from_hf(QWEN3 | changes)


@pytest.mark.parametrize('lost', sorted(set(LLAMA3) - {'rope_type'}))
def test_missing_rope_setting(lost):
  """Catches a default that is put where a checkpoint must decide."""
  scaling = {k: v for k, v in LLAMA3.items() if k != lost}
  for spelling in ('rope_scaling', 'rope_parameters'):
    with pytest.raises(ValueError, match=f"'llama3' lacks {lost}"):
      configs.from_hf(QWEN3 | {spelling: scaling})


@pytest.mark.parametrize('kind', ['linear', 'yarn'])
def test_scaling_without_factor(kind):
  with pytest.raises(ValueError, match=f"'{kind}' lacks factor"):
    configs.from_hf(QWEN3 | {'rope_scaling': {'rope_type': kind}})


def test_missing_sizes_are_listed():
  bare = {k: QWEN3[k] for k in ('architectures', 'hidden_size')}
  with pytest.raises(ValueError, match=r'lacks vocab_size, num_hidden_layers'):
    configs.from_hf(bare)


def test_harmless_settings_pass():
  """Catches a refusal of what real checkpoints say without meaning it."""
  configs.from_hf(
    QWEN3
    | {
      'sliding_window': 4096,
      'use_sliding_window': False,
      'max_window_layers': 28,
      'layer_types': ['full_attention'] * 3,
      'rope_scaling': None,
      'quantization_config': None,
    }
  )


def test_end_ids():
  """Catches an id that is read as none, or a list taken for one id."""
  ids = lambda x: configs.from_hf(QWEN3 | {'eos_token_id': x}).eos_ids
  assert (ids(None), ids(0), ids([7, 9])) == ((), (0,), (7, 9))


@pytest.mark.parametrize(
  'step, dense, wanted', [(1, [], (0, 1, 2)), (2, [], (1,)), (1, [0], (1, 2))]
)
def test_sparse_layers(step, dense, wanted):
  moe = {
    'architectures': ['Qwen3MoeForCausalLM'],
    'num_experts': 4,
    'num_experts_per_tok': 2,
    'moe_intermediate_size': 8,
    'decoder_sparse_step': step,
    'mlp_only_layers': dense,
  }
  config = configs.from_hf(QWEN3 | moe)
  assert config.sparse_layers == wanted
  assert configs.from_hf(configs.to_hf(config)) == config


@pytest.mark.parametrize(
  'path', PATHS, ids=[f'{p.parent.name}-{p.stem}' for p in PATHS]
)
def test_written_config_reads_as_the_same(path):
  """Catches a field that saving a model would lose."""
  config = configs.from_hf(json.loads(path.read_text()))
  written = json.loads(json.dumps(configs.to_hf(config)))
  assert configs.from_hf(written) == config


def test_config_that_no_file_can_say():
  with pytest.raises(ValueError, match=r'llama.*qk_norm=True'):
    configs.to_hf(configs.tiny(family='llama'))
  with pytest.raises(ValueError, match=r'qwen3.*experts=4'):
    configs.to_hf(configs.tiny(experts=4))


def test_rope_kinds_differ():
  """Catches a scaling that is read and then not used."""
  make = lambda **kw: Rope(factor=4.0, original_length=64, **kw)
  plain = make(kind='default').frequencies(16)
  for kind in ('linear', 'llama3', 'yarn'):
    scaled = make(kind=kind).frequencies(16)
    assert (scaled <= plain * 1.0001).all() and (scaled < plain * 0.9).any()
