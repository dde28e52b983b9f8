"""Records transformers' greedy continuations of twenty GSM8K problems.

Run by hand on a folder that `python -m experiments.fetch_smollm2` built:

  python tests/goldens/record_smollm2.py MODEL_DIR

Writes `smollm2_greedy.json`, read by a test on the same folder. Each problem
goes through the model's chat template as one user message (the template puts
its own system message before it), then 64 tokens are decoded greedily in
float32 (the stored bfloat16 weights widened), past the end-of-turn token too.
`margins` holds, for every token, how far the best logit was above the second
best: where that is of the size of rounding, another implementation may rightly
go another way, and nothing after such a step can be compared.
"""

import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent
PROBLEMS = HERE.parents[1] / 'experiments' / 'data' / 'gsm8k_test_20.jsonl'
OUTPUT = HERE / 'smollm2_greedy.json'
NEW = 64


def load(model_dir: str):
  """(tokenizer, float32 model) without any stop token."""
  # The class that tokenizer_config.json names exists from transformers 5 on.
  tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(model_dir)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    model_dir, dtype=torch.float32, attn_implementation='eager'
  ).eval()
  model.generation_config.eos_token_id = None
  return tokenizer, model


def encode(tokenizer, problem: str) -> list[int]:
  """Token ids of one chat turn, up to where the answer begins."""
  return tokenizer.apply_chat_template(
    [{'role': 'user', 'content': problem}], add_generation_prompt=True
  )


def decode(model, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
  """Greedy new ids, and each one's distance from the second best logit."""
  out = model.generate(
    torch.tensor([prompt_ids]),
    attention_mask=torch.ones(1, len(prompt_ids)),
    do_sample=False,
    max_new_tokens=NEW,
    return_dict_in_generate=True,
    output_logits=True,
  )
  new_ids = out.sequences[0, len(prompt_ids) :].tolist()
  best = torch.cat(out.logits).topk(2)
  assert len(new_ids) == NEW, f'{len(new_ids)} tokens: it stopped early'
  margins = (best.values[:, 0] - best.values[:, 1]).tolist()
  chosen = torch.cat(out.logits).gather(1, torch.tensor(new_ids)[:, None])
  assert torch.equal(chosen[:, 0], best.values[:, 0]), 'not greedy'
  return new_ids, [round(m, 6) for m in margins]


@torch.no_grad()
def check(model, run: dict) -> float:
  """One pass without a cache over the whole text: how far its margins differ
  from the recorded ones. Refuses a different token at a clear margin."""
  ids = torch.tensor([run['prompt_ids'] + run['new_ids']])
  logits = model(ids[:, :-1]).logits[0, -NEW:]
  best = logits.topk(2)
  worst = 0.0
  for i, (new_id, margin) in enumerate(
    zip(run['new_ids'], run['margins'], strict=True)
  ):
    again = float(best.values[i, 0] - best.values[i, 1])
    if margin > 1e-3:
      assert int(best.indices[i, 0]) == new_id, f'step {i} is not reproducible'
      worst = max(worst, abs(again - margin))
  return worst


def main(model_dir: str) -> None:
  torch.set_num_threads(2)
  tokenizer, model = load(model_dir)
  runs, worst = [], 0.0
  for line in PROBLEMS.read_text().splitlines():
    prompt_ids = encode(tokenizer, json.loads(line)['prompt'])
    new_ids, margins = decode(model, prompt_ids)
    runs.append(dict(prompt_ids=prompt_ids, new_ids=new_ids, margins=margins))
    worst = max(worst, check(model, runs[-1]))
  head = dict(
    model='SmolLM2-135M-Instruct, 4-bit weights dequantised to bfloat16',
    prompts=str(PROBLEMS.relative_to(HERE.parents[1])),
    compute='float32, eager attention, CPU',
    torch=torch.__version__,
    transformers=transformers.__version__,
  )
  lines = ',\n'.join(json.dumps(run, separators=(',', ':')) for run in runs)
  OUTPUT.write_text(
    f'{json.dumps(head, indent=1)[:-2]},\n "runs": [\n{lines}\n]}}\n'
  )
  assert json.loads(OUTPUT.read_text()) == head | dict(runs=runs)
  near = sum(m < 1e-3 for run in runs for m in run['margins'])
  print(f'{len(runs)} runs of {NEW}; {near} steps with a margin below 1e-3;')
  print(f'uncached margins differ by at most {worst:.2e}; the first answer:')
  print(tokenizer.decode(runs[0]['prompt_ids'] + runs[0]['new_ids']))


if __name__ == '__main__':
  if len(sys.argv) != 2:
    sys.exit(__doc__)
  main(sys.argv[1])
