"""The packaged model against what the authors' reference code recorded.

Float32 on both sides. `tests/goldens/byte_lm` holds one forward pass of target
and drafter, and whole greedy runs with the acceptance length of
every round; any slip in taps, positions, masks, caches, trees or verification
changes at least one of them.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_lm_fixture import FOLDER

from specjax import sampling
from specjax.decode.loop import decode
from specjax.decode.prefill import bucket_for, capacity_for, prefill
from specjax.drafters import dflash_config
from specjax.methods import ar, ddtree, dflash, treeflash
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.models.layers import unembed
from specjax.types import Context, Params, Sampling
from specjax.weights.safetensors import load_target, load_tensors

NEW = 96
SIZES = (7, 15, 32)  # drafted nodes, the root not counted
TOLERANCE = 1e-4


@functools.cache
def golden(name):
  path = FOLDER / name
  return (
    json.loads(path.read_text()) if path.suffix == '.json' else np.load(path)
  )


@functools.cache
def config_of(name):
  return json.loads((FOLDER / name / 'config.json').read_text())


@functools.cache
def target():
  return load_target(FOLDER / 'target', dtype='float32', stacked=True)


@functools.cache
def method_of(name, nodes=None):
  build = {'dflash': dflash, 'ddtree': ddtree, 'treeflash': treeflash}[name]
  options = {} if nodes is None else {'nodes': nodes}
  folder = 'treeflash' if name == 'treeflash' else 'dflash'
  return build.build(target().config, config_of(folder), **options)


@functools.cache
def params_of(folder):
  drafter = method_of(folder).drafter
  shapes = jax.eval_shape(
    lambda key: drafter.init(key, target().config), jax.random.key(0)
  )
  return load_tensors(FOLDER / folder, drafter.tensors(), shapes, 'float32')


def all_greedy(batch):
  zeros = jnp.zeros(batch)
  return Sampling(
    temperature_B=zeros,
    top_k_B=zeros.astype(jnp.int32),
    top_p_B=zeros + 1,
    min_p_B=zeros,
    all_greedy=True,
    filtering=False,
  )


@functools.cache
def prompts():
  """All four at once, so that rows of a batch differ in length."""
  ids = [row['prompt_ids'] for row in golden('greedy_runs.json')]
  bucket = bucket_for(max(map(len, ids)))
  token_BT = np.zeros((len(ids), bucket), np.int32)
  for row, prompt in zip(token_BT, ids, strict=True):
    row[: len(prompt)] = prompt
  return jnp.asarray(token_BT), jnp.array([len(i) for i in ids], jnp.int32)


def read_prompts(reader, params):
  """The state behind the prompts; it depends on the drafter only.

  So methods that share a drafter share this program, too.
  """
  token_BT, length_B = prompts()
  b = len(length_B)
  return prefill(
    reader,
    params,
    token_BT,
    length_B,
    sampling.row_keys(range(b)),
    all_greedy(b),
    jnp.full((b, 4), -1, jnp.int32),
    length_B + NEW,
    capacity=capacity_for(reader, int(max(length_B)), NEW),
  )


def the_tree(tree, logits_BNV, verdict):
  return tree


def run(method, folder='dflash', drafter_params=None, observe=None):
  """(texts, acceptance lengths, records) of the four prompts."""
  given = params_of(folder) if drafter_params is None else drafter_params
  params = Params(target=target(), drafter=given)
  state = read_prompts(method_of(folder), params)
  if method.name == 'ar':
    state, params = state.replace(draft=()), params.replace(drafter=())
  state, records = decode(
    method, params, state, observe=observe, max_rounds=NEW if observe else None
  )
  texts, walks = [], []
  for i, n in enumerate(prompts()[1]):
    texts.append(state.context.tokens_BT[i, n : n + NEW].tolist())
    walks.append(state.walk_BR[i, : state.rounds_B[i]].tolist())
  return texts, walks, records


@functools.cache
def run_of(name, nodes=None):
  method = ar.build() if name == 'ar' else method_of(name, nodes)
  folder = 'treeflash' if name == 'treeflash' else 'dflash'
  observe = the_tree if name == 'ddtree' else None
  return run(method, folder, observe=observe)


def recorded(key):
  """(texts, acceptance lengths) of the reference, cut as this loop stops.

  The reference goes on while its walks sum up to less than the cap, although
  the prefill has emitted a token before them.
  """
  texts, walks = [], []
  for row in golden('greedy_runs.json'):
    start = len(row['prompt_ids'])
    if key == 'autoregressive':
      texts.append(row[key][start:])
      continue
    texts.append(row[key]['output_ids'][start:])
    lengths = row[key]['acceptance_lengths']
    full = sum(lengths[:-1]) >= NEW - 1
    walks.append(lengths[:-1] if full else lengths)
  return texts, walks


@functools.partial(jax.jit, static_argnames=('drafter', 'shift'))
def block_pass(drafter, params, taps_BTE, block_BT, shift=0):
  """Hidden states of the masks behind the recorded context."""
  b, n = taps_BTE.shape[:2]
  state = drafter.start(params, target(), b, 128)
  zero_B = jnp.zeros((b,), jnp.int32)
  state = kv.write(
    state, drafter.context_rows(params, taps_BTE, zero_B + shift), zero_B
  )
  tokens_BT = jnp.zeros((b, n + 1), jnp.int32).at[:, n].set(block_BT[:, 0])
  context = Context(tokens_BT=tokens_BT, length_B=zero_B + n + 1)
  return drafter.hidden(params, target(), state, context).normed_BTD


@functools.cache
def target_pass():
  """The recorded prompt through the target, every layer tapped."""
  ids_BT = jnp.asarray(golden('forward.npz')['input_ids'], jnp.int32)
  b, t = ids_BT.shape
  return jax.jit(transformer.forward, static_argnames='taps')(
    target(),
    ids_BT,
    jnp.broadcast_to(jnp.arange(t), (b, t)),
    kv.empty(target().config, b, 128, jnp.float32),
    jnp.zeros((b,), jnp.int32),
    jnp.tril(jnp.ones((b, t, t), bool)),
    taps=(-1, 0, 1, 2, 3, 4),
  )


def tapped(layers):
  """[B, T, E]: outputs of these layers, side by side."""
  d = target().config.width
  taps_BTE = target_pass().taps_BTE
  return jnp.concatenate(
    [taps_BTE[..., (i + 1) * d : (i + 2) * d] for i in layers], axis=-1
  )


def gap(ours, theirs):
  return float(np.max(np.abs(np.asarray(ours) - np.asarray(theirs))))


def test_target_forward():
  """Fails on any slip in the target: norms, rope, heads, tap numbering."""
  g = golden('forward.npz')
  out = target_pass()
  for layer in range(-1, 5):
    assert gap(tapped((layer,)), g[f'hidden_{layer + 1}']) < TOLERANCE
  assert gap(out.hidden_BTD, g['hidden_6']) < TOLERANCE
  logits = unembed(out.hidden_BTD, target().head)
  assert gap(logits, g['target_logits']) < TOLERANCE


@pytest.mark.parametrize('folder', ['dflash', 'treeflash'])
@pytest.mark.parametrize('stacked', [False, True])
def test_drafter_forward(folder, stacked):
  """Fails where fusion, injected rows, the block pass or a key map is off."""
  g = golden('forward.npz')
  drafter = dflash_config.from_hf(
    config_of('dflash'), target().config, stacked=stacked
  )
  shapes = drafter.abstract('float32')
  params = load_tensors(
    FOLDER / folder,
    drafter.tensors(),
    shapes,
    'float32',
    optional_prefix='model.',
    ignore=('ar_approximation.*',),
  )
  taps_BTE = tapped(drafter.taps)
  assert gap(taps_BTE, g['context_features']) < TOLERANCE
  hidden_BTD = block_pass(drafter, params, taps_BTE, g['block_ids'])
  if folder == 'dflash':
    assert gap(hidden_BTD, g['draft_hidden'][:, 1:]) < TOLERANCE
    logits = unembed(hidden_BTD, target().head)
    assert gap(logits, g['draft_logits'][:, 1:]) < TOLERANCE


def test_forward_tells_slips():
  """The recorded tensors see what the tests above are for."""
  g = golden('forward.npz')
  drafter, params = method_of('dflash').drafter, params_of('dflash')
  right_BTE = tapped(drafter.taps)
  call = lambda drafter=drafter, taps_BTE=right_BTE, shift=0: gap(
    block_pass(drafter, params, taps_BTE, g['block_ids'], shift),
    g['draft_hidden'][:, 1:],
  )
  assert call() < TOLERANCE
  assert call(taps_BTE=tapped((0, 2))) > 100 * TOLERANCE
  assert call(taps_BTE=tapped((2, 4))) > 100 * TOLERANCE
  assert call(taps_BTE=tapped((3, 1))) > 100 * TOLERANCE
  assert call(shift=1) > 100 * TOLERANCE
  causal = dataclasses.replace(drafter, causal=True)
  assert call(drafter=causal) > 100 * TOLERANCE


def test_plain_decoding():
  texts, walks, _ = run_of('ar')
  assert texts == recorded('autoregressive')[0]
  assert all(n == 1 for row in walks for n in row)


@pytest.mark.parametrize(
  ('name', 'size'),
  [('dflash', None)]
  + [(name, size) for name in ('ddtree', 'treeflash') for size in SIZES],
)
def test_greedy_runs(name, size):
  """Texts, and how far every single round went.

  Fails on a wrong tree, a cache row out of place, features of the wrong
  position, and for TreeFlash on each exchange of its correction's inputs or
  halves (tried one by one).
  """
  key = name if size is None else f'{name}_{size}'
  texts, walks, _ = run_of(name, None if size is None else size + 1)
  want_texts, want_walks = recorded(key)
  assert texts == want_texts
  assert walks == want_walks


@pytest.mark.parametrize('size', SIZES)
def test_first_trees(size):
  """Node by node: also what acceptance does not show."""
  trees = run_of('ddtree', size + 1)[2].values
  for b, row in enumerate(golden('greedy_runs.json')):
    for r, want in enumerate(row[f'ddtree_{size}']['first_trees']):
      assert trees.token_BN[r, b, 1:].tolist() == want['node_token_ids']
      assert trees.depth_BN[r, b, 1:].tolist() == want['node_depths']
      assert trees.parent_BN[r, b, 1:].tolist() == want['parents'][1:]


def test_drafter_matters_for_speed_only():
  """A trained drafter is worth its while, a random one costs no text."""
  mean = lambda walks: np.mean([n for row in walks for n in row])
  texts, walks, _ = run_of('ddtree', 33)
  assert mean(walks) > 2.0
  method = method_of('ddtree', 33)
  random = method.drafter.init(jax.random.key(1), target().config)
  texts_random, walks_random, _ = run(
    method, drafter_params=random, observe=the_tree
  )
  assert texts_random == texts
  assert mean(walks_random) < 1.6
