"""What every method must satisfy; each check raises AssertionError.

Plain decoding (`ar`) is the reference, and is one of the methods itself: it is
held to a pass over the whole text, without loop and cache.
"""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import methods_fixture as fx
import numpy as np

from specjax import sampling, tree_ops
from specjax.decode.loop import decode
from specjax.decode.prefill import prefill
from specjax.decode.round import speculative_round
from specjax.method import SizedTree
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.models.layers import unembed
from specjax.verify.follow import Follow
from specjax.weights import checkpoint

GREEDY = {'temperature': 0.0}
SAMPLED = (
  {'temperature': 0.7, 'top_p': 0.9},
  {'temperature': 1.0},
)
ROUNDS = 2  # of a chunk; one compiled program serves all checks with chunks


def full_logits(tokens: list[int]) -> jax.Array:
  """float32[T, V]: the target over a whole text in one pass, no cache."""
  # Padded to few sizes, so that little is compiled.
  size = -(-len(tokens) // 128) * 128
  token_BT = (
    jnp.zeros((1, size), jnp.int32)
    .at[0, : len(tokens)]
    .set(jnp.asarray(tokens))
  )
  return _full_logits(token_BT)[0, : len(tokens)]


@jax.jit
def _full_logits(token_BT):
  out = transformer.read(fx.WEIGHTS, token_BT)
  return unembed(out.hidden_BTD, fx.WEIGHTS.head)


def scores(row, text: list[int]) -> np.ndarray:
  """float32[T, V]: each token of an answer should be the largest of its row.

  One pass over the whole text, with the noise of its positions: what plain
  decoding must give, without its loop and its cache.
  """
  (prompt,), law = row.prompts, row.sampling()
  logits_TV = full_logits(prompt + text)[len(prompt) - 1 : -1]
  if law.all_greedy:
    return np.asarray(logits_TV)
  keys_B, start_B = sampling.row_keys(row.seeds), jnp.asarray([len(prompt)])
  noise_BTV = sampling.noise(keys_B, start_B, *logits_TV.shape)
  return np.asarray(sampling.warp(logits_TV[None], law) + noise_BTV)[0]


def assert_same_texts(got, want, rows, what: str) -> None:
  """Equal ids; the message has the margin of the first that differ.

  A near tie (margin below 1e-4) would excuse a difference between programs.
  No text here needs that excuse, so none is granted.
  """
  for i, (a, b) in enumerate(zip(got, want, strict=True)):
    if a == b:
      continue
    pairs = enumerate(zip(a, b, strict=False))
    same = next((j for j, (x, y) in pairs if x != y), min(len(a), len(b)))
    ahead = np.sort(scores(rows.part(i, 1), b)[same : same + 1])[..., -2:]
    raise AssertionError(
      f'{what}: row {i} differs from token {same} on (top-two margin '
      f'{np.diff(ahead)}):\n got {a}\nwant {b}'
    )


def check_greedy(case: fx.Case, plain: fx.Case) -> None:
  """(a) Greedy ids are plain decoding's, and the target's best."""
  rows = fx.rows_of(**GREEDY)
  got = fx.run(case, rows).texts
  assert_same_texts(got, fx.run(plain, rows).texts, rows, 'greedy')
  for i, text in enumerate(got):
    assert text == scores(rows.part(i, 1), text).argmax(-1).tolist()


def check_sampled(case: fx.Case, plain: fx.Case) -> None:
  """(b) Sampled ids are plain sampling's; all lie in the target's cut law.

  The first half is `Follow`'s promise; other rules draw differently.
  """
  for law in SAMPLED:
    rows = fx.rows_of(**law)
    got = fx.run(case, rows)
    follows = isinstance(case.method.verify, Follow)
    if follows:
      assert_same_texts(got.texts, fx.run(plain, rows).texts, rows, str(law))
    for i, text in enumerate(got.texts):
      assert len(text) == rows.new_tokens[i]
      row, prompt = rows.part(i, 1), rows.prompts[i]
      score_TV = scores(row, text)
      assert np.all(np.take_along_axis(score_TV, np.c_[text], 1) > -np.inf), (
        f'row {i} left the cut law'
      )
      assert not follows or text == score_TV.argmax(-1).tolist()
      logp_TV = jax.nn.log_softmax(full_logits(prompt + text))
      logp_T = np.asarray(logp_TV)[len(prompt) - 1 : -1][
        np.arange(len(text)), text
      ]
      np.testing.assert_allclose(got.logprobs[i], logp_T, atol=2e-4)


def walks_depend_on_batch(case: fx.Case) -> bool:
  """One size of tree is taken for a whole batch; texts never depend on it."""
  return isinstance(case.method.tree, SizedTree)


def check_batch(case: fx.Case) -> None:
  """(c) A row of a batch gives the text and the walk of its run alone."""
  for law in (GREEDY, *SAMPLED):
    rows = fx.rows_of(**law)
    together = fx.run(case, rows)
    for i in range(len(rows)):
      one = rows.part(i, 1)
      alone = fx.run(case, one)
      assert_same_texts([together.texts[i]], alone.texts, one, f'alone {law}')
      if not walks_depend_on_batch(case):
        assert together.walks[i] == alone.walks[0], f'walks of row {i}, {law}'


def check_neighbours(case: fx.Case) -> None:
  """(f) A row does not notice what its neighbours are: equal to the last bit.

  The same program runs twice, so that nothing else can differ.
  """
  mixed = {'temperature': [1.0, 0.7, 0.0], 'top_p': [1.0, 0.9, 1.0]}
  first = fx.run(case, fx.rows_of(**mixed))
  prompts = (fx.PROMPTS[0], [9, 8, 7] * 5, list(range(14)))
  other = fx.rows_of(
    prompts,
    temperature=[1.0, 0.0, 1.3],
    top_k=[0, 0, 3],
    seed=[11, 5, 6],
    new=[24, 3, 40],
  )
  second = fx.run(case, other)
  assert first.texts[0] == second.texts[0]
  if walks_depend_on_batch(case):  # other passes, and so other roundings
    np.testing.assert_allclose(first.logprobs[0], second.logprobs[0], atol=2e-4)
    return
  assert first.walks[0] == second.walks[0]
  assert first.logprobs[0] == second.logprobs[0]


def check_no_jit(case: fx.Case) -> None:
  """(d) Two rounds, operation by operation, are the compiled two rounds."""
  rows = fx.rows_of(**SAMPLED[0])
  state = fx.start(case, rows)
  for _ in range(ROUNDS):
    state, _ = speculative_round(case.method, case.params, state)
  begun = fx.start(case, rows)
  compiled, _ = decode(case.method, case.params, begun, **_CHUNK)
  want, got = fx.outcome(state, rows), fx.outcome(compiled, rows)
  assert got.texts == want.texts
  assert got.walks == want.walks
  for a, b in zip(got.logprobs, want.logprobs, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-4)


def check_compiles_once(case: fx.Case) -> None:
  """(e) New values in known shapes trace nothing."""
  sizes = lambda: (prefill._cache_size(), decode._cache_size())
  for law, other in (
    (GREEDY, GREEDY),
    (
      SAMPLED[0],
      {'temperature': [0.0, 2.0, 0.1], 'top_k': [1, 0, 4], 'min_p': 0.1},
    ),
  ):
    fx.run(case, fx.rows_of(**law))
    before = sizes()
    prompts = ([1], [2] * 32, [3] * 17)
    fx.run(
      case,
      fx.rows_of(prompts, new=[1, 9, 30], seed=99, stop_ids=(4, 5), **other),
    )
    assert sizes() == before, 'a second call with other values recompiled'


def check_save_and_restore(case: fx.Case, folder: pathlib.Path) -> None:
  """(g) A state that was on disk between two rounds gives the same output.

  What a drafter kept outside its state would be lost here.
  """
  rows = fx.rows_of(**SAMPLED[0])
  want = fx.run(case, rows)
  state, _ = decode(case.method, case.params, fx.start(case, rows), **_CHUNK)
  assert not np.any(state.done_B)
  checkpoint.save(folder / 'state', state)
  got = fx.run(case, rows, state=checkpoint.restore(folder / 'state', state))
  assert got.texts == want.texts
  assert got.walks == want.walks


def observe_tree(tree, logits_BNV, verdict):
  """An observer: the whole tree and the verdict's length."""
  return tree, verdict.length_B


_CHUNK = {'max_rounds': ROUNDS, 'observe': observe_tree}


def check_trees(case: fx.Case) -> None:
  """(h) Every round's tree is well formed and of the promised size."""
  rows = fx.rows_of(**SAMPLED[0])
  state = fx.start(case, rows)
  ask = case.method.tree.ask
  while not bool(jnp.all(state.done_B)):
    length_B = np.asarray(state.context.length_B)
    root_B = np.asarray(state.context.tokens_BT)[range(3), length_B - 1]
    state, records = decode(case.method, case.params, state, **_CHUNK)
    for r in range(int(records.count)):
      tree, walked_B = jax.tree.map(lambda x, r=r: x[r], records.values)
      tree_ops.check(tree)
      assert tree.token_BN.shape[1] == case.method.tree.nodes
      assert tree.max_depth <= ask.depth
      assert np.all(np.asarray(walked_B) >= 1)
      deepest_B = jnp.max(jnp.where(tree.valid_BN, tree.depth_BN, 0), axis=1)
      assert np.all(np.asarray(walked_B) <= np.asarray(deepest_B) + 1)
      if r == 0:
        np.testing.assert_array_equal(tree.token_BN[:, 0], root_B)


def check_dead_slots(case: fx.Case) -> None:
  """(i) What stands behind the committed cache rows is never read."""
  for law in (GREEDY, SAMPLED[0]):
    rows = fx.rows_of(**law)
    want = fx.run(case, rows)
    state = fx.start(case, rows)
    live_B = state.context.length_B - 1  # the last token has no row yet

    def poison(x, live_B=live_B):
      if not isinstance(x, kv.KVCache):
        return x
      dead_BS = jnp.arange(x.capacity) >= live_B[:, None]
      spoil = lambda a: jnp.where(dead_BS[:, None, :, None], jnp.nan, a)
      return jax.tree.map(spoil, x)

    is_cache = lambda x: isinstance(x, kv.KVCache)
    state = state.replace(
      cache=poison(state.cache),
      draft=jax.tree.map(poison, state.draft, is_leaf=is_cache),
    )
    got = fx.run(case, rows, state=state)
    assert got.texts == want.texts
    assert got.walks == want.walks
    assert got.logprobs == want.logprobs


def check_something_accepted(case: fx.Case) -> None:
  """The checks above had drafts to keep and drafts to drop."""
  walks = [
    n
    for law in (GREEDY, *SAMPLED)
    for walk in fx.run(case, fx.rows_of(**law)).walks
    for n in walk
  ]
  assert min(walks) == 1
  if case.method.path_rows > 1:
    assert max(walks) > 1, 'no draft was ever accepted'
