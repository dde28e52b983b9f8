"""From a corpus to a drafter's folder that decodes, by the scripts."""

import dataclasses
import functools
import json
import pathlib

import jax
import numpy as np
import pytest
from byte_lm_fixture import FOLDER, load

import specjax
from experiments import drafters, logs, run, shapes, train
from experiments.held_out import HeldOut
from experiments.make_corpus import Making, make
from specjax import packaged
from specjax.methods import dflash, draft_model, eagle3, jetspec, treeflash
from specjax.models.config import from_hf, tiny, to_hf
from specjax.training import loop
from specjax.training.objectives import block
from specjax.training.step import Optimizer
from specjax.vocab.fr_spec import FrSpec
from specjax.vocab.ranks import chosen
from specjax.weights.files import read_settings

pytestmark = pytest.mark.usefixtures('quick_compiles')

TARGET = str(FOLDER / 'target')
OPTIMIZER = Optimizer(rate=1e-3, steps=3)
PACE = loop.Pace(log=1, save=1)
CONFIG = from_hf(read_settings(FOLDER / 'target/config.json'))
SMALL = shapes.Block(layers=1, block=4, mask_id=256, taps=(1, 3), mlp=32)


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'set.jsonl'
  lines = [
    {'prompt': f'How many are {i} and {i}?', 'answer': f'{i}+{i} = {2 * i}.'}
    for i in range(8)
  ]
  path.write_text('\n'.join(map(json.dumps, lines)))
  return str(path)


@pytest.fixture
def corpus(prompts, tmp_path):
  folder = str(tmp_path / 'corpus')
  make(Making(prompts=prompts, out=folder, target=TARGET, answers=True))
  return folder


def trained(tmp_path, corpus, name='one', **changes):
  settings = {
    'run_dir': tmp_path / f'run_{name}',
    'out': str(tmp_path / name),
    'target': TARGET,
    'method': dflash.build,
    'drafter': SMALL,
    'corpus': corpus,
    'objective': functools.partial(block.Block, anchors=4),
    'optimizer': OPTIMIZER,
    'rows': train.Rows(rows=2, length=48),
    'pace': PACE,
  }
  return train.train(**settings | changes)


def test_a_drafter_is_trained_saved_and_decodes(tmp_path, corpus, prompts):
  """Catches a folder that loads as another shape, or figures that are lost."""
  held = HeldOut(prompts=prompts, limit=2, max_new_tokens=6, batch=2)
  out = trained(tmp_path, corpus, held_out=held)
  rows = run.read_rows(tmp_path / 'run_one' / logs.ROWS)
  assert [row['step'] for row in rows] == [1, 2, 3]
  assert rows[-1]['accepted'] >= 1 and 'accepted' not in rows[0]
  asked = {'max_new_tokens': 8}
  plain = load().generate(['A b'], **asked)
  decoder = specjax.load(TARGET, 'dflash', out)
  assert decoder.generate(['A b'], **asked).tokens == plain.tokens
  # Going on from the folder begins with what was written there.
  start = drafters.begin(str(out), dflash.build, load().params.target, 0)
  jax.tree.map(
    np.testing.assert_array_equal, start.init(), decoder.params.drafter
  )


def test_the_same_command_goes_on(tmp_path, corpus):
  """Rows of steps that were not saved are made again, not twice."""
  trained(tmp_path, corpus)
  path = tmp_path / 'run_one' / logs.ROWS
  rows = run.read_rows(path)
  run.append_rows(path, [{'step': 4, 'loss': 0.0}])
  trained(tmp_path, corpus)
  assert run.read_rows(path) == rows
  with pytest.raises(ValueError, match="seed was '0' and is '1'"):
    trained(tmp_path, corpus, seed=1)


def test_stored_layers_are_those_that_the_drafter_reads(tmp_path, corpus):
  """Else it is trained on layers that it will never see again."""
  path = pathlib.Path(corpus) / 'manifest.json'
  kept = {'dtype': 'bfloat16', 'layers': [1, 2], 'widths': [2, 1]}
  manifest = json.loads(path.read_text()) | {'features': kept}
  path.write_text(json.dumps(manifest))
  rows = train.Rows(rows=2, length=48, features=True)
  with pytest.raises(ValueError, match=r'layers \[1, 2\].* reads \[1, 3\]'):
    trained(tmp_path, corpus, rows=rows)
  assert not (tmp_path / 'run_one').exists()


def test_a_ranked_list_is_trained_on(tmp_path, corpus, prompts):
  """Only listed tokens are drafted, in training and in looking."""
  held = HeldOut(prompts=prompts, limit=2, max_new_tokens=6, batch=2)
  ranks = (*range(110, 123), *range(97, 110))
  vocab = FrSpec(ranks=ranks, size=20)
  out = trained(tmp_path, corpus, vocab=vocab, held_out=held, name='few')
  rows = run.read_rows(tmp_path / 'run_few' / logs.ROWS)
  assert rows[0]['ce'] < np.log(20) + 1.5 < np.log(CONFIG.vocab)
  # The folder says what was trained on, to `load` and to another training.
  kept = specjax.load(TARGET, 'dflash', out).params.drafter.id_V
  assert kept.tolist() == sorted(ranks[:20])
  assert drafters.vocab_of(None, out) == FrSpec(ranks=out / packaged.RANKS)
  whole = specjax.load(TARGET, 'dflash', out, vocab='full')
  assert not hasattr(whole.params.drafter, 'id_V')
  fewer = FrSpec(ranks=out / packaged.RANKS, size=3)
  assert chosen(fewer.ranks, 3, 260).tolist() == sorted(ranks[:3])


def test_eagle3_has_a_head_of_its_list(tmp_path):
  shape = shapes.Eagle3(vocab=FrSpec(ranks=[9, 5, 7], size=2))
  build = functools.partial(eagle3.build, width=2, nodes=3, depth=2)
  start = drafters.begin(shape, build, load().params.target, 0)
  drafters.save(tmp_path, start.method, start.config, start.init(), 'float32')
  head = specjax.load(TARGET, build, tmp_path).params.drafter
  assert head.id_V.tolist() == [5, 9]


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'drafter': dataclasses.replace(SMALL, taps=(9,))}, r'\[9\] do not fit'),
    ({'drafter': 'nowhere'}, 'no drafter nowhere'),
    ({'corpus': 'nowhere'}, 'nowhere'),
    ({'target': 'no_such'}, 'no_such'),
    ({'out': TARGET}, 'holds another model'),
    ({'out': f'{TARGET}/config.json'}, 'out is the file'),
  ],
)
def test_what_does_not_fit_is_named(tmp_path, corpus, changes, message):
  with pytest.raises(ValueError, match=message):
    trained(tmp_path, **{'corpus': corpus} | changes)
  assert not (tmp_path / 'run_one').exists()


@pytest.mark.parametrize(
  ('shape', 'build'),
  [
    (SMALL, dflash.build),
    (dataclasses.replace(SMALL, causal=True), jetspec.build),
    (dataclasses.replace(SMALL, treeflash=True), treeflash.build),
    (shapes.Eagle3(mlp=32), eagle3.build),
    (shapes.Small(layers=1, width=32, mlp=32), draft_model.build),
  ],
)
def test_every_shape_is_written_and_read_back(tmp_path, shape, build):
  """Catches a key that a loader reads another way than it was trained."""
  weights = load().params.target
  start = drafters.begin(shape, build, weights, 5)
  params = start.init()
  drafters.save(tmp_path / 'd', start.method, start.config, params, 'float32')
  again = drafters.begin(tmp_path / 'd', build, weights, 0)
  assert again.method == start.method
  jax.tree.map(np.testing.assert_array_equal, again.init(), params)


def test_a_treeflash_begins_with_a_trained_backbone():
  shape = shapes.Block(
    layers=2,
    block=8,
    mask_id=256,
    taps=(1, 3),
    treeflash=True,
    backbone=str(FOLDER / 'dflash'),
  )
  start = drafters.begin(shape, treeflash.build, load().params.target, 0)
  want = load('dflash').params.drafter
  jax.tree.map(np.testing.assert_array_equal, start.init().backbone, want)


def test_a_language_model_is_trained(tmp_path, corpus):
  """A folder with a tokenizer, that the decode loop reads."""
  model = tmp_path / 'spec'
  model.mkdir()
  config = tiny(vocab=260, eos_ids=(257,))
  (model / 'config.json').write_text(json.dumps(to_hf(config)))
  (model / 'bytes.json').write_bytes(
    (FOLDER / 'target/bytes.json').read_bytes()
  )
  out = train.train_model(
    run_dir=tmp_path / 'run',
    model=str(model),
    corpus=corpus,
    out=str(tmp_path / 'model'),
    optimizer=OPTIMIZER,
    rows=train.Rows(rows=2, length=48),
    pace=PACE,
  )
  decoder = specjax.load(out)
  assert decoder.config.dtype == 'bfloat16'
  assert len(decoder.generate(['A b'], max_new_tokens=3).tokens[0]) == 3
