"""Reading of drafter configurations, and what a table of laws answers."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from byte_lm_fixture import FOLDER

from specjax.drafters import dflash, dflash_config, treeflash
from specjax.methods import ddtree
from specjax.methods import dflash as dflash_method
from specjax.methods import treeflash as treeflash_method
from specjax.models.config import from_hf
from specjax.models.transformer import init
from specjax.sampling import row_keys
from specjax.types import Ask, Context, Frontier, Round, Sampling

read = lambda name: json.loads((FOLDER / name / 'config.json').read_text())
TARGET = from_hf(read('target'))
BASE = read('dflash')
# Sizes of the released Qwen3-4B-DFlash-b16 (arXiv:2602.06036).
LARGE_TARGET = from_hf(
  read('target')
  | {'hidden_size': 2560, 'num_hidden_layers': 36, 'vocab_size': 151936}
)
LARGE = BASE | {
  'hidden_size': 2560,
  'intermediate_size': 9728,
  'num_hidden_layers': 5,
  'layer_types': ['full_attention'] * 5,
  'num_attention_heads': 32,
  'num_key_value_heads': 8,
  'head_dim': 128,
  'block_size': 16,
  'num_target_layers': 36,
  'vocab_size': 151936,
  'dflash_config': {'mask_token_id': 151669},
}


def own(**changes):
  return BASE | {'dflash_config': BASE['dflash_config'] | changes}


def test_spellings_agree():
  """Fails where a newer spelling is dropped and a default used instead."""
  plain = dflash_config.from_hf(BASE, TARGET)
  assert plain.block == 8 and plain.mask_id == 256 and plain.taps == (1, 3)
  assert plain.config.rope.theta == 1e6 and not plain.causal
  nested = own(block_size=8, projector_type='dflash')
  del nested['block_size']
  assert dflash_config.from_hf(nested, TARGET) == plain
  newer = BASE | {'rope_parameters': {'rope_theta': 1e6}}
  del newer['rope_theta'], newer['rope_scaling']
  assert dflash_config.from_hf(newer, TARGET) == plain
  top = BASE | BASE['dflash_config']
  del top['dflash_config']
  assert dflash_config.from_hf(top, TARGET) == plain
  for key in ('causal_head', 'causal'):
    assert dflash_config.from_hf(own(**{key: True}), TARGET).causal


def test_default_taps():
  """Published lists, and one where halves round to even (2.5 to 2)."""
  assert dflash_config.from_hf(LARGE, LARGE_TARGET).taps == (1, 9, 17, 25, 33)
  assert dflash_config.default_taps(32, 5) == (1, 8, 15, 22, 29)
  assert dflash_config.default_taps(36, 1) == (18,)
  assert dflash_config.default_taps(7, 3) == (1, 2, 4)


def test_released_size():
  """Tensors and parameters of the released 4B drafter, all of them read."""
  drafter = dflash_config.from_hf(LARGE, LARGE_TARGET)
  leaves = jax.tree.leaves(drafter.abstract('bfloat16'))
  assert sum(leaf.size for leaf in leaves) == 537_427_200
  names = [name for row in drafter.tensors() for name in row.names]
  assert len(names) == len(set(names)) == 58


def test_treeflash_size():
  """The correction has the 125 million parameters its authors quote."""
  config = LARGE | {'treeflash_config': {'ar_approximation': 'swiglu'}}
  drafter = treeflash.from_hf(config, LARGE_TARGET)
  shapes = jax.eval_shape(
    lambda key: drafter.init(key, LARGE_TARGET), jax.random.key(0)
  )
  leaves = jax.tree.leaves(shapes.correction)
  assert sum(leaf.size for leaf in leaves) == 124_540_416


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'hidden_size': 32}, 'hidden_size=32, the target 64'),
    ({'vocab_size': 300}, 'vocab_size=300, the target 260'),
    ({'num_target_layers': 8}, 'num_target_layers=8, the target 6'),
    ({'attention_bias': True}, 'attention_bias=True'),
    ({'layer_types': ['sliding_attention'] * 2}, 'sliding_attention'),
    ({'architectures': ['Qwen3ForCausalLM']}, 'Qwen3ForCausalLM'),
    ({'block_size': None}, 'no block_size'),
    ({'block_size': 1}, 'block_size is 1'),
    (own(projector_type='domino'), "projector_type 'domino'"),
    (own(target_layer_ids=[1, 9]), r'\[1, 9\].*6 layers'),
    (own(target_layer_ids=[1, 5]), r'\[1, 5\].*0 to 4'),
    (own(target_layer_ids=[1, 1]), 'each once'),
    (own(mask_token_id=260), 'mask_token_id 260.*0 to 259'),
    (own(mask_token_id=None), 'no mask_token_id'),
    (own(target_hidden_size=128), 'target_hidden_size=128, the target 64'),
    (own(causal_head=False, causal=True), "'causal': True.*one key"),
    (own(causal='no'), "'causal': 'no'"),
    (own(target_layer_ids='12'), "target_layer_ids is '12'"),
    (own(mask_token_id=2.5), 'mask_token_id is 2.5; give a whole'),
    ({'block_size': '8'}, "block_size is '8'; give a whole"),
    ({'dflash_config': [1]}, 'give settings by name'),
    ({'hidden_size': None}, 'hidden_size is None; give a whole'),
    ({'num_attention_heads': 0}, 'num_attention_heads is 0'),
  ],
)
def test_refused(changes, message):
  """Each is an error that names both sides, not a drafter that guesses."""
  with pytest.raises(ValueError, match=message):
    dflash_config.from_hf(BASE | changes, TARGET)


def test_treeflash_kinds():
  config = read('treeflash')
  assert treeflash.from_hf(config, TARGET).plain == 16
  top = config | {'ar_approximation': 'swiglu'}
  del top['treeflash_config']
  assert isinstance(treeflash.from_hf(top, TARGET), treeflash.TreeFlash)
  off = config | {'treeflash_config': {'ar_approximation': None}}
  method = treeflash_method.build(TARGET, off, nodes=8)
  assert isinstance(method.drafter, dflash.DFlash) and method.tree.shared_rows
  wrong = config | {'treeflash_config': {'ar_approximation': 'linear'}}
  with pytest.raises(ValueError, match='linear'):
    treeflash.from_hf(wrong, TARGET)
  with pytest.raises(ValueError, match='plain is 0'):
    treeflash.from_hf(config, TARGET, plain=0)


def test_sizes_of_methods():
  """`nodes` counts the root everywhere."""
  build = dflash_method.build
  assert build(TARGET, BASE).tree.nodes == 8
  assert build(TARGET, BASE, nodes=1).tree.ask.depth == 0
  for nodes in (0, 9):
    with pytest.raises(ValueError, match=f'nodes is {nodes}.*8'):
      build(TARGET, BASE, nodes=nodes)
  assert ddtree.build(TARGET, BASE).tree.ask == Ask(depth=7, fanout=64)
  assert ddtree.build(TARGET, BASE, nodes=4).tree.ask == Ask(depth=3, fanout=3)
  with pytest.raises(ValueError, match='nodes is 0'):
    ddtree.build(TARGET, BASE, nodes=0)
  ask = treeflash_method.build(TARGET, read('treeflash')).tree.ask
  assert ask == Ask(depth=7, width=63, fanout=16)


def a_round(**sampling):
  """Two rows behind a short prompt."""
  zeros = jnp.zeros(2)
  return Round(
    context=Context(
      tokens_BT=jnp.array([[1, 2, 3], [4, 5, 0]]), length_B=jnp.array([3, 2])
    ),
    key_B=row_keys([0, 1]),
    noise_BPV=None,
    sampling=Sampling(
      zeros + 1, jnp.array([0, 0]), zeros + 1, zeros, **sampling
    ),
  )


def begin(drafter, params, target, state, ask, **sampling):
  """Compiled as a whole, which is quicker than op by op."""
  call = jax.jit(
    lambda p, t, s: drafter.begin(p, t, s, a_round(**sampling), ask)
  )
  return call(params, target, state)


@pytest.fixture(scope='module')
def parts():
  drafter = treeflash.from_hf(read('treeflash'), TARGET, plain=3, stacked=True)
  key = jax.random.key(0)
  target = jax.jit(lambda: init(TARGET, key, stacked=True))()
  params = jax.jit(lambda: drafter.init(key, TARGET))()
  state = drafter.start(params, target, 2, 128)
  return target, drafter, params, state


def test_table_answers_for_every_node(parts):
  """Fanout stops at the vocabulary; all nodes of a depth share a row."""
  target, drafter, params, state = parts
  plain, params = drafter.backbone, params.backbone
  ask = Ask(depth=4, fanout=10_000)
  root, table = begin(plain, params, target, state, ask)
  assert root.token_BWC.shape == (2, 1, 260)
  frontier = Frontier(
    token_BW=jnp.zeros((2, 5), jnp.int32),
    row_BW=jnp.zeros((2, 5), jnp.int32),
    depth=2,
  )
  below, _ = plain.expand(params, target, table, frontier)
  assert below.token_BWC.shape == (2, 5, 260)
  assert jnp.all(below.logq_BWC == table.logq_BWC[:, 2:3])
  assert not jnp.allclose(below.logq_BWC[:, :1], root.logq_BWC)
  with pytest.raises(ValueError, match=r'7 positions.*asks for 8'):
    begin(plain, params, target, state, Ask(depth=8))


def test_law_of_a_sampled_chain(parts):
  """Without a fanout it is the whole vocabulary, as the row samples."""
  target, drafter, params, state = parts
  ask = Ask(depth=2, fanout=None)
  root, _ = begin(
    drafter.backbone, params.backbone, target, state, ask, filtering=False
  )
  assert root.logq_BWC.shape == (2, 1, 260)
  assert jnp.allclose(jnp.exp(root.logq_BWC).sum(-1), 1, atol=1e-5)


def test_new_treeflash_is_its_backbone(parts):
  """A correction of zero changes nothing; unknown parents have no children.

  With `plain` tokens as parents the laws of the backbone come back, so each
  table row belongs to the position below its parent.
  """
  target, drafter, params, state = parts
  ask = Ask(depth=3, fanout=4)
  root, tables = begin(drafter, params, target, state, ask)
  want, table = begin(drafter.backbone, params.backbone, target, state, ask)
  assert jnp.allclose(root.logq_BWC, want.logq_BWC, atol=1e-5)
  known_B3 = tables.parent_BTM[:, 1]
  unknown_B1 = (jnp.max(known_B3, axis=1, keepdims=True) + 1) % 256
  frontier = Frontier(
    token_BW=jnp.concatenate([known_B3, unknown_B1], axis=1),
    row_BW=jnp.zeros((2, 4), jnp.int32),
    depth=2,
  )
  below, _ = drafter.expand(params, target, tables, frontier)
  assert jnp.allclose(below.logq_BWC[:, :3], table.logq_BWC[:, 2:3], atol=1e-5)
  assert jnp.all(below.logq_BWC[:, 3] == -jnp.inf)


def test_correction_by_hand(parts):
  """In NumPy, with every parameter drawn at random, the bias too.

  The recorded runs catch each exchange of two inputs, but the packaged bias is
  too small to change a round.
  """
  _, drafter, params, _ = parts
  rng = np.random.default_rng(0)
  random = lambda x: rng.normal(size=x.shape).astype(np.float32) / 4 + 0.5
  w = jax.tree.map(random, params.correction)
  last_norm = random(params.backbone.norm_D)
  before, raw, normed = rng.normal(size=(3, 2, 5, 64)).astype(np.float32)
  norm = lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  both = np.concatenate([norm(before) * w.norm_D, normed], axis=-1)
  up, gate = np.split(both @ w.up_gate_OI.T + w.bias_O, 2, axis=-1)
  added = (gate / (1 + np.exp(-gate)) * up) @ w.down_DF.T
  params = params.replace(
    correction=w, backbone=params.backbone.replace(norm_D=last_norm)
  )
  got = drafter.correct(params, before, raw, normed)
  want = norm(raw + added) * last_norm
  np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
