"""One of the processes of processes_test: its rank, a port and a folder."""

import json
import pathlib
import sys

import jax

CASES = [  # target, method, mesh
  ('dense', 'ar', {'data': 2, 'tensor': 2}),
  ('dense', 'dflash', {'tensor': 4}),
  ('moe', 'ar', {'data': 2, 'expert': 2}),
  ('moe', 'lookup', {'tensor': 2, 'expert': 2}),
]
PROMPTS = [[1, 2, 3, 4, 1, 2, 3], [5, 6] * 9 + [5], [3, 9]]
SETTINGS = {'max_new_tokens': 12, 'stop_ids': ()}


def answers(folder: pathlib.Path, made=lambda **sizes: None) -> list:
  """What each case says, decoded in one batch; and the first one, served."""
  import specjax

  found = []
  for target, method, sizes in CASES:
    drafter = folder / 'dflash' if method == 'dflash' else None
    decoder = specjax.load(folder / target, method, drafter, mesh=made(**sizes))
    out = decoder.generate(PROMPTS, **SETTINGS, temperature=[0.0, 1.0, 0.0])
    found.append([out.tokens, out.accepted])
    if len(found) == 1:
      events = decoder.serve(
        [specjax.Request(prompt=p, **SETTINGS) for p in PROMPTS],
        slots=2,
        context=64,
      )
      served = {e.id: e.result.tokens for e in events if e.result is not None}
      found.append([served[i] for i in range(len(PROMPTS))])
  return found


if __name__ == '__main__':
  rank, port, folder = sys.argv[1:]
  jax.config.update('jax_default_matmul_precision', 'highest')
  jax.config.update('jax_disable_most_optimizations', True)
  jax.distributed.initialize(f'localhost:{port}', 2, int(rank))
  from specjax.sharding import make_mesh

  assert jax.process_count() == 2 and jax.device_count() == 4
  try:
    make_mesh(tensor=2)
  except ValueError as error:
    assert 'each process takes part' in str(error)
  else:
    raise AssertionError('a mesh without the second process was made')
  print(json.dumps(answers(pathlib.Path(folder), make_mesh)))
