"""JetSpec's head: a block that is causal in every layer; and its options."""

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest

from specjax.drafters import dflash, dflash_config
from specjax.methods import jetspec
from specjax.trees.best_first import BestFirst
from specjax.trees.families import Families
from specjax.types import Accepted, Context

TARGET = fx.CONFIG
HEADS = {
  config['dflash_config']['causal_head']: config
  for config in fx.drafter_configs(TARGET)
  if config['architectures'] == ['DFlashDraftModel']
}
BLOCK, LENGTHS = 6, (4, 7)


def block_states(causal, monkeypatch, *, changed=None, stacked=False):
  """[layers, B, block, D] of one pass; slots from `changed` on read others.

  The drafter's own pass is run, with its mask, cache and lengths; only the
  tokens are exchanged on their way into the layers.
  """
  config = HEADS[causal] | {'num_hidden_layers': 3}
  drafter = dflash_config.from_hf(config, TARGET, stacked=stacked)
  params = drafter.init(jax.random.key(3), TARGET)
  params = jax.tree.map(lambda x: x * 8 if x.ndim > 2 else x, params)
  tap_BPE = jax.random.normal(
    jax.random.key(4), (2, max(LENGTHS), len(drafter.taps) * TARGET.width)
  )
  token_BT = jnp.ones((2, 16), jnp.int32)
  context = Context(token_BT, jnp.array(LENGTHS))
  state = drafter.commit(
    params,
    fx.WEIGHTS,
    drafter.start(params, fx.WEIGHTS, 2, 32),
    None,
    Accepted(
      token_BP=token_BT[:, : max(LENGTHS)],
      start_B=jnp.zeros(2, jnp.int32),
      length_B=context.length_B - 1,
      taps_BPE=tap_BPE,
    ),
  )
  seen = []
  real = dflash.transformer.forward

  def forward(weights, token_BT, *args, taps):
    if changed is not None:
      later_T = jnp.arange(token_BT.shape[1]) >= changed
      token_BT = jnp.where(later_T, (token_BT + 5) % TARGET.vocab, token_BT)
    layers = tuple(range(weights.config.layers))
    seen.append(real(weights, token_BT, *args, taps=layers).taps_BTE)
    return real(weights, token_BT, *args, taps=taps)

  with monkeypatch.context() as patch:
    patch.setattr(dflash.transformer, 'forward', forward)
    drafter.hidden(params, fx.WEIGHTS, state, context)
  (tap_BTE,) = seen
  return np.stack(np.split(np.asarray(tap_BTE), 3, axis=-1))


@pytest.mark.parametrize('stacked', [False, True])
def test_no_slot_sees_a_later_one(stacked, monkeypatch):
  """In no layer; the last ones of them being bidirectional is a known bug.

  Slots that are changed themselves do differ, in every layer and row.
  """
  plain = block_states(True, monkeypatch, stacked=stacked)
  for changed in range(1, BLOCK):
    other = block_states(True, monkeypatch, changed=changed, stacked=stacked)
    np.testing.assert_array_equal(other[:, :, :changed], plain[:, :, :changed])
    moved = np.abs(other - plain)[:, :, changed:].max(-1)
    assert moved.min() > 1e-3


def test_bidirectional_slots_see_later_ones(monkeypatch):
  """The power of the test above: a DFlash head fails it, in every layer."""
  plain = block_states(False, monkeypatch)
  for changed in range(1, BLOCK):
    other = block_states(False, monkeypatch, changed=changed)
    moved = np.abs(other - plain)[:, :, :changed].max(-1)
    assert moved.min() > 1e-3


def test_the_switch_changes_all_but_the_last_slot(monkeypatch):
  """A full row of the mask is one row of both; in the first layer it is equal.

  Fails where `causal_head` is read but not used, or cuts the context as well.
  """
  causal = block_states(True, monkeypatch)
  both = block_states(False, monkeypatch)
  np.testing.assert_allclose(causal[0, :, -1], both[0, :, -1], atol=1e-5)
  assert np.abs(causal - both)[0, :, :-1].max(-1).min() > 1e-3


def test_spellings_and_refusals():
  """Plain DFlash heads are sent to their own methods."""
  head = HEADS[True]
  with pytest.raises(ValueError, match=r"bidirectional.*'dflash' or 'ddtree'"):
    jetspec.build(TARGET, HEADS[False])
  own = dict(head['dflash_config'])
  del own['causal_head']
  with pytest.raises(ValueError, match='bidirectional'):
    jetspec.build(TARGET, head | {'dflash_config': own})
  newer = head | {'dflash_config': own | {'causal': True}}
  assert jetspec.build(TARGET, newer) == jetspec.build(TARGET, head)
  adapted = own | {'causal': True, 'target_hidden_size': 2 * TARGET.width}
  with pytest.raises(ValueError, match='target_hidden_size'):
    jetspec.build(TARGET, head | {'dflash_config': adapted})


def test_options():
  head = HEADS[True]
  tree = jetspec.build(TARGET, head).tree
  assert tree == Families(nodes=128, depth=5, width=7, shared_rows=True)
  tree = jetspec.build(
    TARGET, head, tree='best_first', nodes=9, width=99, depth=3
  ).tree
  assert tree == BestFirst(
    nodes=9, depth=3, fanout=TARGET.vocab, shared_rows=True
  )
  with pytest.raises(ValueError, match=r"'heap'.*families, best_first"):
    jetspec.build(TARGET, head, tree='heap')
  for depth in (0, BLOCK):
    with pytest.raises(ValueError, match=f'depth is {depth}.*1 to 5'):
      jetspec.build(TARGET, head, depth=depth)
  with pytest.raises(ValueError, match='nodes is 0'):
    jetspec.build(TARGET, head, nodes=0)
  for wrong in ({'width': '3'}, {'width': 2.5}, {'depth': 'a'}):
    for kind in ('families', 'best_first'):
      with pytest.raises(ValueError, match=f'{next(iter(wrong))} is '):
        jetspec.build(TARGET, head, tree=kind, **wrong)
