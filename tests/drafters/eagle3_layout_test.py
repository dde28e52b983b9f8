"""What is read from an EAGLE-3 drafter's config.json, shapes and maps."""

import re

import eagle3_fixture
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eagle3_fixture import TARGET

from specjax.drafters.eagle3.layer_ids import KEY
from specjax.drafters.eagle3.layout import NESTED, from_hf
from specjax.drafters.eagle3.names import by_canonical, canonical
from specjax.drafters.eagle3.weights import abstract, target_ids, tensors
from specjax.methods import eagle3
from specjax.trees.beam import Beam
from specjax.trees.chain import Chain
from specjax.types import Ask

HF = {
  **eagle3_fixture.HF,
  'rms_norm_eps': 1e-5,
}


def shapes(**changes):
  """The shapes of a checkpoint of `HF`, by their canonical names."""
  settings = from_hf(HF | changes, TARGET)
  like = abstract(settings, 'float32')
  found = {}
  for row in tensors(settings):
    leaf = like
    for part in row.path.split('.'):
      leaf = leaf[int(part)] if part.isdigit() else getattr(leaf, part)
    found |= {n: leaf.shape[len(row.names) > 1 :] for n in row.names}
  return found


class TestSettings:
  def test_rope_is_never_the_targets(self):
    """Catches a theta taken from the target, or the newer key read last."""
    theta = lambda **keys: from_hf(HF | keys, TARGET).config.rope.theta
    assert theta() == 10000.0
    assert theta(rope_theta=5.0) == 5.0
    assert theta(rope_theta=5.0, rope_parameters={'rope_theta': 6.0}) == 6.0

  def test_speculators_nest(self):
    """The same drafter with its layer's keys in a place of their own."""
    top = ('architectures', 'draft_vocab_size')
    inner = {k: v for k, v in HF.items() if k not in top}
    given = {NESTED: inner, 'draft_vocab_size': 12, KEY: [2, 4, 5]}
    given['speculators_model_type'] = 'eagle3'
    assert from_hf(given, TARGET) == from_hf(HF, TARGET)
    given[NESTED] = inner | {'model_type': 'qwen3'}
    assert from_hf(given, TARGET).config.qk_norm

  def test_shapes_win(self):
    """Catches sizes of a config.json that lies, and a tie that is none."""
    known = shapes(head_dim=6)
    wrong = {
      'num_hidden_layers': 40,
      'num_key_value_heads': 4,
      'draft_vocab_size': 13,
      'intermediate_size': 99,
      'tie_word_embeddings': True,
    }
    with pytest.warns(UserWarning) as warned:
      got = from_hf(HF | wrong | {'tensors': known}, TARGET)
    right = from_hf(HF | {'head_dim': 6}, TARGET)
    assert got == right and got.config.head_dim == 6
    said = ' '.join(str(w.message) for w in warned)
    for key in ('head_dim=4', *(f'{k}={wrong[k]}' for k in list(wrong)[:4])):
      assert key in said

  def test_the_authors_own_name(self):
    """Their files say LlamaForCausalLM: tensors decide, not the name."""
    plain = HF | {'architectures': ['LlamaForCausalLM']}
    assert from_hf(plain | {'tensors': shapes()}, TARGET) == from_hf(HF, TARGET)
    with pytest.raises(ValueError, match='is no EAGLE-3 drafter'):
      from_hf(plain, TARGET)
    with pytest.raises(ValueError, match='is no EAGLE-3 drafter'):
      from_hf(HF | {'architectures': ['DFlashDraftModel']}, TARGET)

  def test_optional_tensors(self):
    """Head and embedding are the target's where the file has none."""
    known = {k: v for k, v in shapes().items() if k not in ('d2t', 't2d')}
    del known['lm_head.weight']
    given = HF | {'draft_vocab_size': None, 'tensors': known}
    got = from_hf(given, TARGET)
    assert got.draft_vocab == 20 and not got.own_head and not got.offsets
    wide = {'target_hidden_size': 8, 'hidden_size': 16, 'tensors': None}
    got = from_hf(HF | wide, TARGET)
    assert got.own_embedding and got.own_head and got.target_width == 8

  def test_norms_are_seen_in_the_file(self):
    """Catches tensors that are loaded and never applied."""
    for key in ('fc_norm', 'norm_before_fc'):
      known = shapes(**{key: True})
      assert getattr(from_hf(HF | {'tensors': known}, TARGET), key)
      with pytest.raises(ValueError, match=f'{key}=False, but a tensor'):
        from_hf(HF | {key: False, 'tensors': known}, TARGET)
      with pytest.raises(ValueError, match=f'{key}=True, but no tensor'):
        from_hf(HF | {key: True, 'tensors': shapes()}, TARGET)

  @pytest.mark.parametrize(
    ('changes', 'message'),
    [
      ({'hidden_act': 'gelu'}, "hidden_act='gelu'"),
      ({'attention_bias': True}, "biases.*'attention_bias'"),
      ({'sliding_window': 64}, 'sliding windows'),
      ({'rope_scaling': {'type': 'dynamic'}}, "'dynamic' is not supported"),
      ({'vocab_size': 21}, 'vocab_size=21, the target 20'),
      ({'target_hidden_size': 6}, 'target_hidden_size=6, the target 8'),
      ({'draft_vocab_size': 21}, 'more tokens than the target'),
      ({'fc_norm': True, 'norm_before_fc': True}, 'both norm_before_fc'),
      ({'hidden_size': None}, 'lacks hidden_size'),
      ({'num_attention_heads': 0}, 'num_attention_heads is 0; give a whole'),
      ({'head_dim': '4'}, "head_dim is '4'; give a whole number"),
      ({'rms_norm_eps': '1e-5'}, "rms_norm_eps is '1e-5'"),
      ({'dtype': 'int3'}, "dtype is 'int3'"),
    ],
    ids=str,
  )
  def test_refused(self, changes, message):
    with pytest.raises(ValueError, match=message):
      from_hf(HF | changes, TARGET)

  @pytest.mark.parametrize(
    ('changes', 'message'),
    [
      ({'fc.weight': None}, 'has no fc.weight'),
      ({'midlayer.self_attn.q_proj.weight': (16, 8)}, 'reads 8 numbers'),
      ({'midlayer.self_attn.q_proj.bias': (16,)}, 'biases'),
      ({'fc.weight': (8, 25)}, 'do not divide'),
      ({'fc.weight': (24,)}, r'fc.weight has shape \[24\], which is no matrix'),
      ({'midlayer.self_attn.k_proj.weight': (8,)}, r'\[8\], which is no'),
      ({'fc.weight': (8, 30)}, 'target_hidden_size=10, the target 8'),
      ({'d2t': None}, 'no d2t'),
      ({'lm_head.weight': None}, 'no head'),
      ({'model.fc.weight': (8, 24)}, 'two spellings'),
    ],
    ids=str,
  )
  def test_refused_tensors(self, changes, message):
    known = {k: v for k, v in (shapes() | changes).items() if v is not None}
    with pytest.raises(ValueError, match=message):
      from_hf(HF | {'tensors': known}, TARGET)

  def test_names(self):
    spelt = {
      'model.layers.0.hidden_norm.weight': 'midlayer.hidden_norm.weight',
      'draft_model.model.layers.1.mlp.up_proj.weight': 'layers.1.mlp.up_proj'
      '.weight',
      'model.fc_norm.2.weight': 'fc_norm.2.weight',
      'fc_norms.0.weight': 'fc_norm.0.weight',
      'draft_id_to_target_id': 'd2t',
    }
    assert {name: canonical(name) for name in spelt} == spelt
    assert by_canonical(spelt) == {v: k for k, v in spelt.items()}


class TestMaps:
  ID_V = np.array([0, 1, 4, 5, 9])

  def maps(self, vocab=12):
    return self.ID_V - np.arange(5), np.isin(np.arange(vocab), self.ID_V)

  def test_offsets(self):
    d2t_V, t2d_V = self.maps()
    for mask in (t2d_V, None):
      np.testing.assert_array_equal(target_ids(d2t_V, mask, 5, 12), self.ID_V)
    assert target_ids(None, None, 12, 12) is None
    assert target_ids(np.zeros(12), np.ones(12), 12, 12) is None

  def test_ids_are_said_to_be_ids(self):
    """Catches ids that are read as offsets, or without a word."""
    with pytest.warns(UserWarning, match='ids and not offsets'):
      got = target_ids(self.ID_V, self.maps()[1], 5, 12)
    np.testing.assert_array_equal(got, self.ID_V)

  @pytest.mark.parametrize(
    ('offsets', 'mask', 'message'),
    [
      (np.zeros(5), None, 'd2t is all zeros'),
      (np.array([0, 0, 2, 2, 5]), np.ones(12, bool), 't2d is true for all'),
      (
        np.array([0, 0, 2, 2, 5]),
        np.arange(12) < 5,
        'contradict.*offsets.*ids',
      ),
      (np.array([0, 1, 2, 3, 4]), None, 'as offsets .* and as ids'),
      # Ids by frequency: read as offsets they are other tokens, all allowed.
      (np.array([5, 2, 6, 1, 3]), None, 'as offsets .* and as ids'),
      (ID_V, None, 'read as offsets gives tokens from 0 to 13'),
      (np.array([0, 1, 0, 2, 2]), None, '4 different of 5'),
      (np.array([-1, 0, 2, 2, 2]), None, 'from -1'),
    ],
  )
  def test_refused(self, offsets, mask, message):
    with pytest.raises(ValueError, match=message):
      target_ids(offsets, mask, 5, 12)


class TestMethod:
  def test_parts(self):
    """Catches a drafter that holds fewer pending rows than a round accepts."""
    method = eagle3.build(TARGET, HF)
    assert method.tree == Beam(nodes=60, depth=8, width=10)
    assert method.drafter.max_depth == 8 and method.sharpness
    chain = eagle3.build(TARGET, HF, nodes=4, width=1, rule='rejection')
    assert chain.tree == Chain(depth=3, sampled=True)
    assert chain.drafter.max_depth == 3 and chain.sharpness is None
    assert eagle3.build(TARGET, HF, coupled=False).sharpness is None
    for rule_name in ('rejection', 'other'):
      with pytest.raises(ValueError, match=f"rule is '{rule_name}'"):
        eagle3.build(TARGET, HF, rule=rule_name)

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'width': 1, 'depth': -2}, 'depth is -2; give a whole'),
      ({'width': 1, 'depth': 'a'}, "depth is 'a'"),
      ({'width': '3'}, "width is '3'"),
      ({'nodes': 2.5}, 'nodes is 2.5'),
      ({'width': 13}, 'width is 13, and the drafter knows 12 tokens'),
      ({'width': 10**6}, 'width is 1000000'),
    ],
    ids=str,
  )
  def test_sizes(self, options, message):
    """Catches a wrong depth that is reported as nodes, and a tree whose table
    of depths fills the memory before anything is said."""
    with pytest.raises(ValueError, match=message):
      eagle3.build(TARGET, HF, **options)

  def test_unbound_parameters_are_refused(self):
    """Catches offsets that are taken for ids."""
    drafter = eagle3.build(TARGET, HF).drafter
    raw = drafter.init(jax.random.key(1), TARGET)
    with pytest.raises(ValueError, match=re.escape('`method.bind`')):
      drafter.head(raw, None)
    made = drafter.bind(raw, None)
    np.testing.assert_array_equal(
      drafter.head(made, None).id_V, np.flatnonzero(raw.t2d_V)
    )

  def test_an_embedding_that_was_left_out(self):
    """All zeros stand for the target's."""
    known = shapes() | {'embed_tokens.weight': (20, 8)}
    drafter = eagle3.build(TARGET, HF | {'tensors': known}).drafter
    raw = drafter.init(jax.random.key(1), TARGET)
    assert drafter.bind(raw, None).embed_VD is raw.embed_VD
    blank = raw.replace(embed_VD=jnp.zeros_like(raw.embed_VD))
    assert drafter.bind(blank, None).embed_VD is None

  def test_a_deeper_tree_is_refused(self):
    """Catches features of a long path that no longer fit the state."""
    drafter = eagle3.build(TARGET, HF).drafter
    with pytest.raises(ValueError, match='trees of depth 8, this one has 9'):
      drafter.begin(None, None, None, None, Ask(depth=9))
