"""Buckets, chunks and the capacity guard."""

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np
import pytest
from conformance_checks import full_logits

from specjax.decode.loop import decode
from specjax.decode.prefill import CHUNK, bucket_for, capacity_for, prefill
from specjax.models import transformer

pytestmark = pytest.mark.usefixtures('quick_compiles')


def _prompt(length: int) -> list[int]:
  return np.random.default_rng(length).integers(0, 16, length).tolist()


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


class TestBuckets:
  def test_sizes(self):
    """A wrong edge would recompile, or cut a prompt."""
    wanted = {1: 32, 32: 32, 33: 64, 64: 64, 65: 128, 128: 128}
    wanted |= {129: 256, 256: 256, 257: 512, 512: 512, 513: 768}
    assert {n: bucket_for(n) for n in wanted} == wanted

  @pytest.mark.parametrize(
    'lengths', [(1, 31, 32), (33, 64, 1), (128, 127, 65), (129, 256, 255)]
  )
  def test_edges(self, plain, lengths):
    """Fails if padding is read, or the last row is taken from elsewhere."""
    rows = fx.rows_of([_prompt(n) for n in lengths], new=2)
    self._check(plain, rows)

  def test_several_chunks(self, plain):
    """Fails if a chunk does not see those before it."""
    rows = fx.rows_of([_prompt(n) for n in (257, 300, 12)], new=2)
    self._check(plain, rows)

  def _check(self, case, rows):
    got = fx.run(case, rows)
    for prompt, text in zip(rows.prompts, got.texts, strict=True):
      logits_TV = full_logits(prompt + text)
      n = len(prompt)
      assert text == jnp.argmax(logits_TV[n - 1 : n + 1], axis=-1).tolist()

  def test_chunks_are_one_big_pass(self, plain):
    """Fails on a wrong start, position or mask of the second chunk."""
    prompt = _prompt(300)
    state = fx.start(plain, fx.rows_of([prompt], new=2))
    n = len(prompt)
    big = _pass(jnp.asarray(prompt)[None])
    for cached, whole in zip(
      jax.tree.leaves(state.cache), jax.tree.leaves(big.rows), strict=True
    ):
      np.testing.assert_allclose(cached[..., :n, :], whole, atol=1e-4)
    logp = jax.nn.log_softmax(full_logits(prompt)[-1])
    first = int(state.context.tokens_BT[0, n])
    np.testing.assert_allclose(state.logprob_BT[0, n], logp[first], atol=1e-4)

  @pytest.mark.parametrize(
    ('bucket', 'capacity'), [(CHUNK + 32, 2 * CHUNK), (64, 32)]
  )
  def test_wrong_sizes(self, plain, bucket, capacity):
    rows = fx.rows_of([[1]])
    with pytest.raises(ValueError, match='bucket_for and capacity_for'):
      prefill(
        plain.method,
        plain.params,
        jnp.zeros((1, bucket), jnp.int32),
        jnp.ones(1, jnp.int32),
        jax.random.key(0)[None],
        rows.sampling(),
        jnp.asarray(rows.stops()),
        jnp.full(1, 2),
        capacity=capacity,
      )


@jax.jit
def _pass(token_BT):
  return transformer.read(fx.WEIGHTS, token_BT)


class TestCapacity:
  @pytest.mark.parametrize('name', fx.method_names())
  def test_no_committed_row_is_overwritten(self, name):
    """Fails if a path's rows do not fit behind the last committed token.

    JAX clamps such a write, which shifts it over committed rows. Texts end as
    close to the last slot as the guard allows.
    """
    case = fx.make_case(name)
    for prompts in ((4, 32, 17), (1, 2, 31)):
      room = 128 - case.method.path_rows
      new = [room - n for n in prompts]
      new[1] -= 9  # done earlier, yet it takes part in every round
      rows = fx.rows_of([_prompt(n) for n in prompts], new=new)
      slots = capacity_for(case.method, max(prompts), 128 - max(prompts))
      assert slots > 128, 'the texts would not be at the edge'
      got = fx.run(case, rows, capacity=128)
      assert list(map(len, got.texts)) == new
      assert _spoiled(rows, got) < 1e-4

  def test_the_check_sees_a_clamped_write(self):
    """Two slots fewer than the guard gives, and a finished row is spoiled."""
    case = fx.make_case('lookup')
    short = 128 - 2
    room = 128 - case.method.path_rows
    rows = fx.rows_of([_prompt(4), _prompt(9)], new=[room - 4, room - 30])
    assert _spoiled(rows, fx.run(case, rows, capacity=128)) < 1e-4
    longer = fx.rows_of([_prompt(4), _prompt(9)], new=[room - 4, room - 9])
    spoiled = [
      _spoiled(r, fx.run(case, r, capacity=short)) for r in (rows, longer)
    ]
    assert max(spoiled) > 1e-2


def _spoiled(rows, got) -> float:
  """The largest distance of a committed row from a fresh pass over the text."""
  worst = 0.0
  for i, (prompt, text) in enumerate(zip(rows.prompts, got.texts, strict=True)):
    ids = prompt + text
    n = len(ids) - 1
    padded = jnp.zeros((1, 128), jnp.int32).at[0, : n + 1].set(jnp.asarray(ids))
    fresh = _pass(padded).rows
    for cached, row in zip(
      jax.tree.leaves(got.state.cache), jax.tree.leaves(fresh), strict=True
    ):
      gap = jnp.abs(cached[:, i, :, :n] - row[:, 0, :, :n])
      worst = max(worst, float(jnp.max(gap)))
  return worst


def test_decode_does_nothing_when_all_rows_are_done(plain):
  """Fails if the loop runs a round before it asks."""
  rows = fx.rows_of(new=1)
  state = fx.start(plain, rows)
  before = fx.snapshot(state)
  after, _ = decode(plain.method, plain.params, state)
  jax.tree.map(np.testing.assert_array_equal, fx.snapshot(after), before)
