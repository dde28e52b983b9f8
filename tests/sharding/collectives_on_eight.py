"""Run by devices_test: what a partitioned program says to its neighbours.

The rule, for a target on a mesh whose `tensor` x `expert` axes are longer than
one, B, T and D being those of one shard:

- one all-reduce [B, T, D] for the embedding, whose rows are split;
- two all-reduces [B, T, D] per layer, behind attention and behind the mlp, or
  [B T, D] behind the experts: their sum over shards is one;
- one all-gather of queries per layer, where query heads are split further than
  the key/value heads are;
- nothing else per layer: no array of weights or of the cache is ever gathered.

Per round come the best of each shard's vocabulary, two all-gathers of an entry
per row and shard. `data` alone adds one bit, whether all rows are done.
"""

import collections
import math

import jax
import jax.numpy as jnp
import mesh_fixture as fx
import pytest
from compiled_fixture import whole_moves
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from specjax import sharding
from specjax.decoder import Decoder
from specjax.models import transformer

pytestmark = pytest.mark.usefixtures('quick_compiles')
LAYERS = 3


def compiled(mesh, name, method='ar'):
  """The decode loop of a decoder with unstacked layers: all are in the text."""
  config = fx.CONFIGS[name]
  one = fx.decoder(config, method)
  target = transformer.restack(one.params.target, False)
  one = Decoder(method=one.method, params=one.params.replace(target=target))
  many = fx.on(mesh, one)
  fx.generate(many, max_new_tokens=4)
  return many, fx.program(many, 'decode')


def expected(*, reduced=(), queries=None, best=None, done=False):
  want = collections.Counter()
  for shape, count in reduced:
    want['all-reduce', f'f32[{shape}]'] += count
  if queries:
    want['all-gather', f'f32[{queries}]'] += LAYERS
  if best:
    want['all-gather', f'f32[{best}]'] += 1
    want['all-gather', f's32[{best}]'] += 1
  if done:
    want['all-reduce', 'pred[]'] += 1
  return want


class TestPlainDecoding:
  @pytest.mark.parametrize(
    ('mesh', 'name', 'want'),
    [
      (
        (1, 8, 1),
        'even',
        expected(reduced=[('3,1,32', 2 * LAYERS + 1)], best='3,1,8'),
      ),
      (
        (2, 4, 1),
        'even',
        expected(reduced=[('2,1,32', 2 * LAYERS + 1)], best='2,1,4', done=True),
      ),
      ((8, 1, 1), 'even', expected(done=True)),
      # Heads and vocabulary are whole; the mlp is split.
      ((2, 4, 1), 'odd', expected(reduced=[('2,1,32', LAYERS)], done=True)),
      ((1, 8, 1), 'odd', expected()),
      (
        (1, 8, 1),
        'grouped',
        expected(
          reduced=[('3,1,32', 2 * LAYERS + 1)], queries='3,1,8,12', best='3,1,8'
        ),
      ),
      (
        (1, 1, 8),
        'moe',
        expected(
          reduced=[('3,1,32', LAYERS + 1), ('3,32', LAYERS)], best='3,1,8'
        ),
      ),
      (
        (2, 2, 2),
        'moe',
        expected(
          reduced=[('2,1,32', LAYERS + 1), ('2,32', LAYERS)],
          best='2,1,4',
          done=True,
        ),
      ),
    ],
  )
  def test_as_the_rule_says(self, mesh, name, want):
    _, text = compiled(sharding.make_mesh(*mesh), name)
    assert fx.collectives(text) == want


class TestDrafting:
  def test_drafter_layers_count_like_the_targets(self):
    """DFlash: two layers and the block's embedding, and what is proposed."""
    _, text = compiled(sharding.make_mesh(tensor=8), 'even', 'dflash')
    found = fx.collectives(text)
    rows = '3,6,32'  # of the block as of the chain
    assert found.pop(('all-reduce', f'f32[{rows}]')) == 2 * (LAYERS + 2) + 2
    # Best tokens of the draft with their scores and norms; the target's own.
    assert found == {
      ('all-gather', 's32[3,5,8]'): 1,
      ('all-gather', 'f32[3,5,8]'): 2,
      ('all-gather', 's32[3,6,8]'): 1,
      ('all-gather', 'f32[3,6,8]'): 1,
    }


def gathered(text: str, params) -> list[str]:
  """All-gathers whose result is as large as some matrix of the parameters."""
  sizes = {x.size for x in jax.tree.leaves(params) if x.ndim > 1}
  size = lambda shape: math.prod(
    int(n) for n in shape.partition('[')[2].rstrip(']').split(',') if n
  )
  return [
    shape
    for kind, shape in fx.collectives(text)
    if kind != 'all-reduce' and size(shape) in sizes
  ]


class TestWeightsStay:
  @pytest.mark.parametrize('name', fx.CONFIGS)
  def test_no_weights_are_gathered(self, name):
    many, text = compiled(sharding.make_mesh(1, 4, 2), name)
    assert not gathered(text, many.params.target)
    prefill = fx.program(many, 'prefill')
    assert not gathered(prefill, many.params.target)

  def test_a_gather_would_be_seen(self):
    mesh = sharding.make_mesh(tensor=8)
    whole, split = (NamedSharding(mesh, s) for s in (P(), P('tensor')))
    w_FD = jax.device_put(jnp.ones((48, 32)), split)
    text = jax.jit(jnp.sin, out_shardings=whole).lower(w_FD).compile().as_text()
    assert gathered(text, [w_FD])


class TestCache:
  def test_parts_are_written_in_place(self):
    """A shard holds its own rows and heads, and no copy of them."""
    _, text = compiled(sharding.make_mesh(2, 4), 'even')
    shape = 'f32[3,2,2,128,12]'  # L, B / 2, K / 4, S, H
    assert shape in text
    assert not whole_moves(text, shape)
    assert 'f32[3,4,8,128,12]' not in text
