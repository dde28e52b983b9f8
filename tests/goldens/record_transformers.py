"""Records tiny random checkpoints and what transformers computes from them.

Run by hand, from anywhere: `python tests/goldens/record_transformers.py`
[NAME ...]. The tests read only the folders it leaves under `models`:

  config.json, *.safetensors   as `save_pretrained` writes them
  golden.npz                   float32 outputs, eager attention, on a CPU:
    input_ids      [2, T]      random, no padding
    logits         [2, T, V]
    hidden_0..L    [2, T, D]   embeddings, then each layer's output; the last
                               one is after the final norm
    greedy_prompt  [P]
    greedy_ids     [24]        `generate`, no sampling, no stop token

Weights are drawn wide enough for logits of a few units, and norm weights away
from 1, so that a missing piece shows. Each recording is refused when an argmax
or a choice of experts in it is so close that another summation order could turn
it, or when a feature that it is there for (rope scaling, the renormalised
expert weights, ...) changes nothing.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

MODELS = pathlib.Path(__file__).parent / 'models'
PROMPT = 12
NEW = 24

COMMON = dict(
  vocab_size=96,
  hidden_size=32,
  intermediate_size=64,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=128,
  tie_word_embeddings=False,
  bos_token_id=None,
  eos_token_id=None,
)
QWEN3 = COMMON | dict(model_type='qwen3', head_dim=16, rope_theta=1e4)
MOE = QWEN3 | dict(
  model_type='qwen3_moe',
  head_dim=12,
  num_experts=8,
  num_experts_per_tok=2,
  moe_intermediate_size=12,
)
LLAMA = COMMON | dict(
  model_type='llama',
  hidden_size=48,
  intermediate_size=48,
  rms_norm_eps=1e-5,
  rope_theta=1e4,
)
# Scaled ropes turn faster (theta 100), so that the few angles of a tiny head
# fall on both sides of the scaling's boundaries.
SCALED = dict(rope_theta=100.0)
CONFIGS = {
  'qwen3': QWEN3,
  'qwen3_tied': QWEN3 | dict(tie_word_embeddings=True),
  'qwen3_moe': MOE | dict(norm_topk_prob=True, decoder_sparse_step=1),
  'qwen3_moe_mixed': MOE
  | dict(
    norm_topk_prob=False,
    decoder_sparse_step=2,  # layers 1 and 3 ...
    mlp_only_layers=[1],  # ... but not 1: experts in layer 3 alone
    num_hidden_layers=4,
    intermediate_size=32,
    moe_intermediate_size=8,
  ),
  # A large epsilon, to notice one that is not read from the file.
  'llama': LLAMA | dict(rms_norm_eps=1e-2),
  'llama_bf16': LLAMA | dict(dtype='bfloat16'),
  'llama_linear': LLAMA
  | SCALED
  | dict(rope_scaling=dict(rope_type='linear', factor=4.0)),
  'llama3': LLAMA
  | SCALED
  | dict(
    tie_word_embeddings=True,
    rope_scaling=dict(
      rope_type='llama3',
      factor=8.0,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
      original_max_position_embeddings=32,
    ),
  ),
  'qwen3_yarn': QWEN3
  | SCALED
  | dict(
    max_position_embeddings=64,
    rope_scaling=dict(
      rope_type='yarn', factor=4.0, original_max_position_embeddings=16
    ),
  ),
  'llama_yarn': LLAMA
  | SCALED
  | dict(
    max_position_embeddings=64,
    rope_scaling=dict(
      rope_type='yarn',
      factor=2.0,
      original_max_position_embeddings=32,
      attention_factor=1.3,
      beta_fast=4.0,
      beta_slow=0.5,
    ),
  ),
}
# Seeds whose recording is clear of near ties and of repeated greedy tokens.
SEEDS = {
  'qwen3': 2,
  'qwen3_moe': 3,
  'llama': 2,
  'llama_bf16': 1,
  'qwen3_yarn': 2,
  'llama_yarn': 5,
}
# The field that a recording is there for, at a value that must change it.
TELLS = {
  'qwen3_moe': dict(norm_topk_prob=False),
  'qwen3_moe_mixed': dict(norm_topk_prob=True),
  'llama': dict(rms_norm_eps=1e-6),
  'llama_linear': dict(rope_scaling=None),
  'llama3': dict(rope_scaling=None),
  'qwen3_yarn': dict(rope_scaling=None),
  'llama_yarn': dict(rope_scaling=None),
}


def build(name: str, seed: int) -> transformers.PreTrainedModel:
  """A model with the named configuration and random float32 weights."""
  fields = dict(CONFIGS[name])
  config = transformers.AutoConfig.for_model(fields.pop('model_type'), **fields)
  model = transformers.AutoModelForCausalLM.from_config(
    config, dtype=torch.float32, attn_implementation='eager'
  ).eval()
  rng = np.random.default_rng(seed)
  with torch.no_grad():
    for key, weight in sorted(model.named_parameters()):
      drawn = rng.standard_normal(tuple(weight.shape), np.float32)
      if weight.ndim == 1:
        drawn = 1 + 0.3 * drawn
      else:
        gain = 3.0 if 'lm_head' in key or key.endswith('gate.weight') else 1.5
        drawn *= gain / np.sqrt(weight.shape[1])
      weight.copy_(torch.from_numpy(drawn))
  return model


def save(model: transformers.PreTrainedModel, name: str) -> pathlib.Path:
  """Writes the folder, and the variants of its files that tests want."""
  folder = MODELS / name
  folder.mkdir(parents=True, exist_ok=True)
  for old in folder.iterdir():
    old.unlink()
  dtype = getattr(torch, CONFIGS[name].get('dtype', 'float32'))
  shard = '64KB' if name == 'qwen3_moe' else '1GB'
  model.to(dtype).save_pretrained(folder, max_shard_size=shard)
  (folder / 'generation_config.json').unlink()
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  if name == 'llama':  # older files leave it to be worked out
    del config['head_dim']
    path.write_text(json.dumps(config, indent=2) + '\n')
  if name == 'llama3':  # as transformers 5 spells the same thing
    rope = config.pop('rope_scaling')
    config['rope_parameters'] = rope | dict(rope_theta=config.pop('rope_theta'))
    path = folder / 'config_rope_parameters.json'
    path.write_text(json.dumps(config, indent=2) + '\n')
  for path in folder.iterdir():
    path.chmod(0o644)  # safetensors 0.8 writes for the owner only
  return folder


def load(folder: pathlib.Path, **fields) -> transformers.PreTrainedModel:
  """The folder's model in float32, with `fields` of its config replaced."""
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, attn_implementation='eager', **fields
  ).eval()


@torch.no_grad()
def record(model: transformers.PreTrainedModel, seed: int) -> dict:
  """Runs the loaded model; the arrays of golden.npz."""
  vocab = model.config.vocab_size
  length = 48 if model.config.rope_scaling else 24
  rng = np.random.default_rng(seed + 1000)
  input_ids = rng.integers(vocab, size=(2, length), dtype=np.int32)
  prompt = rng.integers(vocab, size=PROMPT, dtype=np.int32)
  out = model(torch.tensor(input_ids).long(), output_hidden_states=True)
  ids = model.generate(
    torch.tensor(prompt[None]).long(),
    attention_mask=torch.ones(1, PROMPT),
    do_sample=False,
    max_new_tokens=NEW,
    pad_token_id=0,
  )[0]
  arrays = dict(input_ids=input_ids, logits=out.logits.numpy())
  for i, hidden in enumerate(out.hidden_states):
    arrays[f'hidden_{i}'] = hidden.numpy()
  arrays['greedy_prompt'] = prompt
  arrays['greedy_ids'] = ids[PROMPT:].numpy().astype(np.int32)
  return arrays


@torch.no_grad()
def margins(model: transformers.PreTrainedModel, golden: dict) -> dict:
  """How far greedy tokens and choices of experts are from turning."""
  ids = np.concatenate([golden['greedy_prompt'], golden['greedy_ids']])
  moe = hasattr(model.config, 'num_experts')
  fields = dict(output_router_logits=True) if moe else {}
  logits = model(torch.tensor(ids[None, :-1]).long()).logits[0, PROMPT - 1 :]
  assert logits.argmax(-1).tolist() == golden['greedy_ids'].tolist()
  best = logits.topk(2).values
  found = dict(greedy=float((best[:, 0] - best[:, 1]).min()))
  if moe:
    k = model.config.num_experts_per_tok
    for rows in (golden['input_ids'], ids[None]):
      out = model(torch.tensor(rows).long(), **fields)
      for router in out.router_logits:
        top = router.reshape(-1, router.shape[-1]).topk(k + 1).values
        gap = float((top[:, k - 1] - top[:, k]).min())
        found['experts'] = min(gap, found.get('experts', gap))
  return found


@torch.no_grad()
def check(folder: pathlib.Path, golden: dict) -> None:
  """Reloads the folder, compares, and reports what the recording can tell."""
  model = load(folder)
  tokens = torch.tensor(golden['input_ids']).long()
  logits = model(tokens).logits.numpy()
  np.testing.assert_allclose(logits, golden['logits'], rtol=0, atol=1e-6)
  last = golden[f'hidden_{model.config.num_hidden_layers}']
  head = model.lm_head(torch.tensor(last)).detach().numpy()
  np.testing.assert_allclose(head, golden['logits'], rtol=0, atol=1e-5)
  assert golden['greedy_ids'].shape == (NEW,)
  near = margins(model, golden)
  assert min(near.values()) > 1e-3, f'{folder.name}: near tie, {near}'
  effect = 0.0
  if folder.name in TELLS:
    other = load(folder, **TELLS[folder.name])(tokens).logits.numpy()
    effect = float(np.abs(other - golden['logits']).max())
    assert effect > 0.1, f'{folder.name}: {TELLS[folder.name]} changes nothing'
  kib = sum(path.stat().st_size for path in folder.iterdir()) / 1024
  print(
    f'{folder.name}: {kib:.0f} KiB, logits std {logits.std():.2f},'
    f' {len(set(golden["greedy_ids"].tolist()))} distinct greedy ids,'
    f' attention factor {model.model.rotary_emb.attention_scaling:.4f},'
    f' margins {near}, effect {effect:.2f}'
  )


def main(names: list[str]) -> None:
  torch.set_num_threads(2)
  transformers.utils.logging.set_verbosity_error()
  transformers.utils.logging.disable_progress_bar()
  for name in names or CONFIGS:
    seed = SEEDS.get(name, 0)
    folder = save(build(name, seed), name)
    golden = record(load(folder), seed)
    np.savez_compressed(folder / 'golden.npz', **golden)
    check(folder, dict(np.load(folder / 'golden.npz')))


if __name__ == '__main__':
  main(sys.argv[1:])
