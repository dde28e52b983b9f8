"""A small EAGLE-3 drafter's settings, and a target it fits."""

from specjax.models import config

V, WIDTH = 20, 8
TARGET = config.tiny(vocab=V, width=WIDTH, layers=8)
HF = {
  'architectures': ['LlamaForCausalLMEagle3'],
  'vocab_size': V,
  'hidden_size': WIDTH,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 4,
  'intermediate_size': 12,
  'draft_vocab_size': 12,
}
