"""How fast the loop is on a CPU: ratios, each measured in one run.

  python -m experiments.fetch_smollm2 smollm2
  python -m experiments.bench_cpu --target=smollm2

Every line is the median of turns A B A B ..., with its range, of float32 at
batch 1. Absolute times of a shared machine mean little, so only ratios carry a
goal. The lines against transformers need the extra `peers`; without it they
are left out and said to be.
"""

from __future__ import annotations

import functools
import json
import pathlib
import statistics

import jax
import jax.numpy as jnp
from absl import app, flags

import specjax
from experiments import hf_generate, run
from experiments.plain_loop import plain_greedy
from experiments.prompts import as_messages, read_prompts, to_ask
from experiments.states import after_prompt
from experiments.timing import interleaved, ratio
from specjax import sampling
from specjax.decode.loop import decode
from specjax.inputs import make_rows
from specjax.methods import ar, lookup

FLAGS = run.flag_values(__name__)
flags.DEFINE_string(
  'target', None, 'SmolLM2 folder.', required=True, flag_values=FLAGS
)
flags.DEFINE_integer(
  'repeats', 7, 'Turns of every comparison.', flag_values=FLAGS
)
flags.DEFINE_integer(
  'new_tokens', 64, 'Tokens decoded per turn.', flag_values=FLAGS
)
flags.DEFINE_string('out', None, 'JSON file for the rows.', flag_values=FLAGS)

QUESTION = 'A baker fills 12 trays with 9 rolls each. How many rolls is that?'


def main(argv) -> None:
  del argv
  target = pathlib.Path(FLAGS.target)
  rows = []
  for part in (ar_against_others, rounds, packaged):
    for row in part(target):
      rows.append(row)
      print(_line(row), flush=True)
  if FLAGS.out:
    pathlib.Path(FLAGS.out).write_text(json.dumps(rows, indent=1) + '\n')


def ar_against_others(target: pathlib.Path):
  """tokens/s of `ar` against a plain JAX loop and transformers' generate."""
  new = FLAGS.new_tokens
  decoder = specjax.load(target=target, method='ar', dtype='float32')
  ids = decoder.encode(as_messages(QUESTION))
  ask = dict(max_new_tokens=new, stop_ids=())
  want = decoder.generate(ids, **ask).tokens[0]
  plain = plain_greedy(decoder.params.target, ids, new)
  if plain() != want:
    raise AssertionError('the plain loop and `ar` do not agree.')
  jobs = {'ar': lambda: decoder.generate(ids, **ask), 'plain loop': plain}
  hf = _transformers(target, ids, new)
  if hf is None:
    print('transformers or torch is not installed: its line is left out.')
  else:
    if hf() != want:
      print('note: transformers decodes other ids here.')
    jobs['transformers generate'] = hf
  seconds = interleaved(jobs, repeats=FLAGS.repeats)
  goals = {'plain loop': '>= 0.95', 'transformers generate': '>= 2'}
  for name in list(jobs)[1:]:
    yield _row(
      f'tokens/s of ar / {name}', seconds[name], seconds['ar'], goals[name]
    )


def rounds(target: pathlib.Path):
  """One round of 8 rows against 1, and the price of sampling."""
  decoder = specjax.load(target=target, method='ar', dtype='float32')
  ids = decoder.encode(as_messages(QUESTION))
  params = decoder.params
  one, eight = ar.build(), lookup.build(nodes=8)
  jobs = {
    'ar': _rounds_job(one, params, ids),
    'ar T=1': _rounds_job(one, params, ids, temperature=1.0),
    'ar T=1 top-p 0.9': _rounds_job(
      one, params, ids, temperature=1.0, top_p=0.9
    ),
    '8 rows': _rounds_job(eight, params, ids),
    '8 rows T=1': _rounds_job(eight, params, ids, temperature=1.0),
    '8 rows T=1 top-p 0.9': _rounds_job(
      eight, params, ids, temperature=1.0, top_p=0.9
    ),
    'all weights read once': _one_pass(params.target),
  }
  seconds = interleaved(jobs, repeats=FLAGS.repeats)
  pairs = [
    ('8 rows', 'ar', '<= 1.3'),
    ('ar', 'all weights read once', None),
    ('ar T=1', 'ar', None),
    ('ar T=1 top-p 0.9', 'ar', None),
    ('8 rows T=1', '8 rows', None),
    ('8 rows T=1 top-p 0.9', '8 rows', None),
  ]
  for a, b, goal in pairs:
    yield _row(f'round time of {a} / {b}', seconds[a], seconds[b], goal)


def packaged(target: pathlib.Path):
  """The packaged model: decode time per text, `ar` over `ddtree` of 33 rows."""
  del target
  chats = to_ask(read_prompts('gsm8k_test_20', limit=4))
  jobs = {}
  for method, more in (('ar', {}), ('ddtree', {'nodes': 33})):
    decoder = specjax.load(method=method, dtype='float32', **more)
    jobs[method] = functools.partial(
      lambda d: [
        d.generate([c], max_new_tokens=96, stop_ids=(), pad_to=256)
        for c in chats
      ],
      decoder,
    )
  seconds = interleaved(jobs, repeats=FLAGS.repeats)
  yield _row(
    'packaged model: speed-up of ddtree nodes=33 over ar',
    seconds['ar'],
    seconds['ddtree'],
    '> 1',
  )


def _rounds_job(method, params, ids, *, count: int = 12, **settings):
  """A job of `count` rounds from the prompt's end; the state is re-used."""
  config = params.target.config
  rows = make_rows(
    [ids],
    vocab=config.vocab,
    max_length=config.max_length,
    max_new_tokens=256,
    **settings,
  )
  state = after_prompt(method, params, rows)
  program = decode.lower(method, params, state, max_rounds=count).compile()
  host = jax.device_get(state.replace(key_B=None))

  def job():  # the state is donated, so each turn starts from a copy
    fresh = jax.device_put(host).replace(key_B=sampling.row_keys(rows.seeds))
    jax.block_until_ready(program(params, fresh))

  return job


def _one_pass(weights, count: int = 12):
  """The floor of a step: reading every weight once (as often as a round)."""
  leaves = jax.tree.leaves(weights)
  read = jax.jit(lambda leaves: sum(jnp.sum(x) for x in leaves))

  def job():
    for _ in range(count):
      read(leaves).block_until_ready()

  return job


def _transformers(target: pathlib.Path, ids: list[int], new: int):
  try:
    generate = hf_generate.generator(hf_generate.load(target), new)
  except ImportError:
    return None
  return lambda: generate(ids)


def _row(name: str, over: list[float], under: list[float], goal: str | None):
  middle, low, high = ratio(over, under)
  return dict(
    figure=name,
    ratio=round(middle, 3),
    low=round(low, 3),
    high=round(high, 3),
    goal=goal,
    seconds=[statistics.median(over), statistics.median(under)],
    turns=len(over),
    jax=jax.__version__,
    device=jax.devices()[0].device_kind,
  )


def _line(row) -> str:
  goal = f'  (goal {row["goal"]})' if row['goal'] else ''
  span = f'[{row["low"]:.2f}, {row["high"]:.2f}]'
  return f'{row["figure"]:<52} {row["ratio"]:6.2f} {span}{goal}'


if __name__ == '__main__':
  app.run(main)
