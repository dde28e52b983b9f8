"""One EAGLE-3 drafter in three layouts."""

import functools
import json

import eagle3_fixture
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eagle3_fixture import TARGET, WIDTH, V
from safetensors.numpy import load_file, save_file

import specjax
from experiments.convert_drafter import LAYOUTS, convert, main
from specjax import sampling
from specjax.drafters.eagle3 import weights as eagle3_weights
from specjax.drafters.eagle3.drafter import Eagle3
from specjax.drafters.eagle3.layout import from_hf
from specjax.drafters.eagle3.names import IGNORED
from specjax.method import bind
from specjax.methods import eagle3
from specjax.models import transformer
from specjax.types import Accepted, Context, Params, Round, Sampling
from specjax.weights.safetensors import (
  load_tensors,
  save_target,
  save_tensors,
  stored_shapes,
)

pytestmark = pytest.mark.usefixtures('quick_compiles')

HF = {
  **eagle3_fixture.HF,
  'rope_parameters': {'rope_theta': 77.0},
}
VARIED = {
  'norm_before_residual': True,
  'norm_output': True,
  'fc_norm': True,
  'num_hidden_layers': 2,
  'eagle_aux_hidden_state_layer_ids': [1, 3, 8],
}


def written(folder, **changes):
  """A random drafter in a folder, as a trainer of SpecForge leaves it."""
  settings = from_hf(HF | changes, TARGET)
  rng = np.random.default_rng(0)
  weights = jax.tree.map(
    lambda x: (
      rng.normal(0.5, 0.5, x.shape).astype('f4')
      if x.dtype == jnp.float32
      else x
    ),
    eagle3_weights.init(settings, jax.random.key(1)),
  )
  folder.mkdir()
  rows = eagle3_weights.tensors(settings)
  save_tensors(weights, rows, folder / 'model.safetensors')
  (folder / 'config.json').write_text(json.dumps(HF | changes))
  return folder


@functools.partial(jax.jit, static_argnums=0)
def run(method, params, kept, round):
  drafter, ask = method.drafter, method.tree.ask
  args = params.drafter, params.target
  state = drafter.start(*args, 1, 24)
  state = drafter.commit(*args, state, None, kept)
  root, scratch = drafter.begin(*args, state, round, ask)
  expand = functools.partial(drafter.expand, *args)
  return root.logq_BWC, method.tree.grow((), expand, root, scratch, round)[0]


def proposals(folder):
  """What the drafter of a folder says about one prompt: scores and a tree."""
  given = json.loads((folder / 'config.json').read_text())
  shapes = stored_shapes(folder)
  method = eagle3.build(
    TARGET, given | {'tensors': shapes}, nodes=9, depth=3, width=3
  )
  raw = load_tensors(
    folder,
    method.drafter.tensors(),
    eagle3_weights.abstract(method.drafter.settings, 'float32'),
    'float32',
    ignore=IGNORED,
  )
  target = transformer.init(TARGET, jax.random.key(0), scale=0.3)
  params = bind(method, Params(target=target, drafter=raw))
  rng = np.random.default_rng(1)
  token_BT = jnp.asarray(rng.integers(0, V, (1, 24)), jnp.int32)
  zero, one, n = jnp.zeros(1), jnp.ones(1, jnp.int32), 7
  kept = Accepted(
    token_BP=token_BT[:, :n],
    start_B=0 * one,
    length_B=n * one,
    taps_BPE=jnp.asarray(rng.normal(size=(1, n, 3 * WIDTH)), jnp.float32),
  )
  round = Round(
    context=Context(token_BT, (n + 1) * one),
    key_B=sampling.row_keys([0]),
    noise_BPV=None,
    sampling=Sampling(zero, one, zero, zero, all_greedy=True),
  )
  return method.drafter.taps, jax.device_get(run(method, params, kept, round))


def same(a, b):
  assert a[0] == b[0], 'layers'
  jax.tree.map(np.testing.assert_array_equal, a[1], b[1])


@pytest.mark.parametrize('changes', [{}, VARIED], ids=['plain', 'varied'])
def test_layouts_propose_the_same(tmp_path, changes):
  """From each layout into each, bit by bit. Catches ids that count differently,
  a theta or a switch that is lost, and offsets written as something else."""
  source = written(tmp_path / 'source', **changes)
  want = proposals(source)
  assert want[0] == ((0, 2, 7) if changes else (1, 3, 4))
  layouts = LAYOUTS[bool(changes) :]
  for first in layouts:
    convert(source, tmp_path / first, first, TARGET)
    same(proposals(tmp_path / first), want)
    for second in layouts:
      folder = tmp_path / f'{first}_{second}'
      convert(tmp_path / first, folder, second, TARGET)
      same(proposals(folder), want)


def test_layouts_look_as_others_write_them(tmp_path):
  """What other readers go by; the names could all be right for us alone."""
  source = written(tmp_path / 'source')
  ids = 'eagle_aux_hidden_state_layer_ids'
  for layout in LAYOUTS:
    convert(source, tmp_path / layout, layout, TARGET)
    given = json.loads((tmp_path / layout / 'config.json').read_text())
    stored = load_file(tmp_path / layout / 'model.safetensors')
    assert stored['d2t'].dtype == np.int64 and stored['t2d'].dtype == bool
    kept = np.flatnonzero(stored['t2d'])
    np.testing.assert_array_equal(stored['d2t'] + np.arange(12), kept)
    nested = layout == 'speculators'
    first = 'layers.0.' if nested else 'midlayer.'
    assert f'{first}hidden_norm.weight' in stored
    layers = given['transformer_layer_config'] if nested else given
    assert layers['rope_theta'] == 77.0 and given['draft_vocab_size'] == 12
    if layout == 'eagle':
      assert ids not in given and 'eagle_config' not in given
    if layout == 'specforge':
      assert given['eagle_config'][ids] == [1, 3, 4]
    if nested:
      assert given[ids] == [2, 4, 5]


def test_spellings(tmp_path):
  """Prefixes, other names of the map, absolute ids with a mask, and tensors
  that are no parameters, in a folder that `specjax.load` reads as a whole."""
  source = written(tmp_path / 'source')
  want = proposals(source)
  stored = load_file(source / 'model.safetensors')
  spelt = {
    'draft_model.' + k.replace('midlayer.', 'layers.0.'): v
    for k, v in stored.items()
    if k != 'd2t'
  }
  spelt['draft_id_to_target_id'] = np.flatnonzero(stored['t2d'])
  spelt['model.verifier_lm_head.weight'] = np.ones((V, WIDTH), 'f4')
  spelt['verifier_norm.weight'] = spelt['mask_hidden'] = np.ones(WIDTH, 'f4')
  other = tmp_path / 'other'
  other.mkdir()
  save_file(spelt, other / 'model.safetensors')
  (other / 'config.json').write_bytes((source / 'config.json').read_bytes())
  with pytest.warns(UserWarning, match='ids and not offsets'):
    same(proposals(other), want)
  with pytest.warns(UserWarning, match='ids and not offsets'):
    convert(other, tmp_path / 'made', 'eagle', TARGET)
  same(proposals(tmp_path / 'made'), want)
  weights = transformer.init(TARGET, jax.random.key(0), stacked=False)
  save_target(weights, tmp_path / 'target')
  with pytest.warns(UserWarning, match='ids and not offsets'):
    decoder = specjax.load(tmp_path / 'target', 'eagle3', other, nodes=4)
  assert isinstance(decoder.method.drafter, Eagle3) and decoder.nodes == 4
  np.testing.assert_array_equal(
    decoder.params.drafter.id_V, np.flatnonzero(stored['t2d'])
  )


def test_what_a_layout_cannot_say(tmp_path):
  """Catches a drafter that another project would run as a different one."""
  source = written(tmp_path / 'source', **VARIED)
  with pytest.raises(
    ValueError, match='no place for norm_before_residual, fc_norm, norm_output'
  ):
    convert(source, tmp_path / 'out', 'eagle', TARGET)
  assert not (tmp_path / 'out').exists()
  with pytest.raises(ValueError, match="layout is 'vllm'"):
    convert(source, tmp_path / 'out', 'vllm', TARGET)
  unfit = written(
    tmp_path / 'unfit', eagle_aux_hidden_state_layer_ids=[3, 5, 6]
  )
  with pytest.raises(ValueError, match="aux='inputs' or aux='outputs'"):
    convert(unfit, tmp_path / 'out', 'specforge', TARGET)


def test_half_precision_stays(tmp_path):
  """Catches weights that become float32, and a config that says so."""
  source = written(tmp_path / 'source')
  file = source / 'model.safetensors'
  half = lambda x: x.astype('f2') if x.dtype == np.float32 else x
  save_file({k: half(v) for k, v in load_file(file).items()}, file)
  convert(source, tmp_path / 'out', 'speculators', TARGET)
  made = load_file(tmp_path / 'out' / 'model.safetensors')
  assert made['fc.weight'].dtype == np.float16
  given = json.loads((tmp_path / 'out' / 'config.json').read_text())
  assert given['torch_dtype'] == 'float16'


def test_command_line(tmp_path, capsys):
  """Catches a traceback in the place of an error, and options that are lost."""
  source = written(tmp_path / 'source')
  weights = transformer.init(TARGET, jax.random.key(0), stacked=False)
  save_target(weights, tmp_path / 'target')
  args = [str(source), str(tmp_path / 'out'), '--layout', 'eagle', '--target']
  main([*args, str(tmp_path / 'target')])
  assert 'wrote' in capsys.readouterr().out
  same(proposals(tmp_path / 'out'), proposals(source))
  with pytest.raises(SystemExit, match=r'error: .*nosuch'):
    main([*args, str(tmp_path / 'nosuch')])
  with pytest.raises(SystemExit, match='error: aux='):
    main([*args, str(tmp_path / 'target'), '--aux', 'inputs'])
