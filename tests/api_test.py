"""The public API on the packaged model: what a notebook types first."""

import functools
import inspect
import math

import numpy as np
import pytest
from byte_lm_fixture import FOLDER

import specjax
from specjax.methods import dflash, lookup
from specjax.vocab.evospec import EvoSpec
from specjax.vocab.fr_spec import FrSpec

PROMPT = 'A robe takes 2 bolts of blue fiber and half that much white.\n'
OTHER = 'Two trains leave.\n'


@pytest.fixture(scope='module')
def ar():
  return specjax.load(method='ar')


@pytest.fixture(scope='module')
def ddtree():
  return specjax.load(method='ddtree', nodes=9)


def test_the_signature_is_kept():
  """A renamed or reordered argument would break every notebook."""
  load = list(inspect.signature(specjax.load).parameters)
  assert load[:3] == ['target', 'method', 'drafter']
  assert {'nodes', 'dtype'} <= set(load)
  generate = inspect.signature(specjax.Decoder.generate).parameters
  assert {
    'prompts',
    'max_new_tokens',
    'temperature',
    'top_k',
    'top_p',
    'seed',
    'stop_ids',
    'stop',
    'n',
    'logprobs',
  } <= set(generate)
  assert generate['temperature'].default == 0.0
  fields = {f for f in specjax.Stats.__dataclass_fields__}
  assert fields == {
    'tokens',
    'rounds',
    'mean_accepted',
    'tau_paper',
    'prefill_s',
    'decode_s',
    'tokens_per_s',
    'compile_s',
  }


def test_a_method_gives_the_same_text_in_fewer_rounds(ar, ddtree):
  want = ar.generate([PROMPT, OTHER], max_new_tokens=40, stop_ids=())
  got = ddtree.generate([PROMPT, OTHER], max_new_tokens=40, stop_ids=())
  assert got.tokens == want.tokens and got.text == want.text
  assert want.stats.mean_accepted == 1 == want.stats.tau_paper
  assert got.stats.rounds < want.stats.rounds == 2 * 39
  # The last walk may run over the cap, so uncut walks sum to more or as much.
  for ids, walks in zip(got.tokens, got.accepted, strict=True):
    assert sum(walks[:-1]) < len(ids) - 1 <= sum(walks)
  by_rounds = got.stats.tokens - 2
  assert got.stats.mean_accepted == by_rounds / got.stats.rounds
  assert got.stats.compile_s > 0


def test_samples_have_seeds_of_their_own(ddtree):
  ask = dict(max_new_tokens=24, temperature=1.0, stop_ids=())
  out = ddtree.generate([PROMPT, OTHER], n=2, seed=5, **ask)
  assert len(out.tokens) == 4 and len({tuple(t) for t in out.tokens}) == 4
  # Prompt-major; row i has seed 5 + i, wherever it stands in a batch.
  alone = ddtree.generate(
    [OTHER, PROMPT, OTHER, PROMPT], seed=[8, 5, 7, 6], **ask
  )
  assert [alone.tokens[i] for i in (1, 3, 2, 0)] == out.tokens
  two = ddtree.generate([PROMPT, OTHER], n=2, seed=5, batch_size=2, **ask)
  assert two.tokens == out.tokens


def test_settings_per_row(ddtree):
  both = ddtree.generate(
    [PROMPT, PROMPT],
    max_new_tokens=[7, 19],
    temperature=[0.0, 1.0],
    top_k=[0, 3],
    top_p=[1.0, 0.9],
    seed=[1, 2],
    stop_ids=(),
  )
  assert [len(t) for t in both.tokens] == [7, 19]
  greedy = ddtree.generate(PROMPT, max_new_tokens=19, stop_ids=())
  assert both.tokens[0] == greedy.tokens[0][:7]
  assert both.tokens[1] != greedy.tokens[0]
  assert both.finish_reason == ['length', 'length']


def test_stop_strings_cut_the_text_before_them(ar, ddtree):
  whole = ar.generate(PROMPT, max_new_tokens=60, stop_ids=()).text[0]
  stop = whole[20:24]
  for decoder in (ar, ddtree):
    out = decoder.generate(
      PROMPT, max_new_tokens=60, stop=[stop, 'never there'], stop_ids=()
    )
    assert out.text[0] == whole[: whole.find(stop)]
    assert out.finish_reason == ['stop']
    assert bytes(out.tokens[0]).decode().endswith(stop)
    assert out.stats.tokens == len(out.tokens[0])


def test_logprobs_are_the_targets(ar, ddtree):
  ask = dict(max_new_tokens=16, stop_ids=(), logprobs=True)
  want = ar.generate(PROMPT, **ask).logprobs[0]
  got = ddtree.generate(PROMPT, **ask).logprobs[0]
  assert len(got) == 16 and max(got) <= 0
  assert got == pytest.approx(want, abs=1e-4)


def test_room_for_longer_prompts_changes_no_text(ddtree):
  ask = dict(max_new_tokens=24, stop_ids=())
  plain = ddtree.generate(PROMPT, **ask)
  roomy = ddtree.generate(PROMPT, pad_to=300, **ask)
  assert roomy.tokens == plain.tokens and roomy.accepted == plain.accepted


def test_one_token_has_no_round(ar):
  out = ar.generate(PROMPT, max_new_tokens=1, stop_ids=())
  assert out.accepted == [[]] and len(out.tokens[0]) == 1
  assert math.isnan(out.stats.mean_accepted)


def test_prompts_in_three_forms(ar):
  ids = ar.encode(PROMPT)
  assert ids == list(PROMPT.encode())
  assert ar.encode(ids) == ids
  chat = [{'role': 'user', 'content': PROMPT.strip()}]
  ask = dict(max_new_tokens=8, stop_ids=())
  same = [ar.generate(p, **ask).tokens for p in (PROMPT, ids, [ids])]
  assert same[0] == same[1] == same[2]
  assert len(ar.generate([chat, chat], **ask).tokens) == 2


def test_a_method_object_is_taken_as_it_is(ar):
  decoder = specjax.load(method=lookup.build(nodes=4))
  assert decoder.nodes == 4
  assert specjax.load(method='lookup', nodes=np.int64(4)).nodes == 4
  ask = dict(max_new_tokens=24, stop_ids=())
  assert (
    decoder.generate(PROMPT, **ask).tokens == ar.generate(PROMPT, **ask).tokens
  )
  with pytest.raises(ValueError, match='cannot change a Method'):
    specjax.load(method=lookup.build(nodes=4), nodes=5)


def test_a_packaged_scorer_is_of_one_drafter():
  """Named or not; of another one's drafts it knows nothing."""
  named = specjax.load(method='taps', drafter='dflash', nodes=9)
  assert specjax.load(method='taps', nodes=9).method == named.method
  with pytest.raises(ValueError, match='trained scorer'):
    specjax.load(method='taps', drafter='dflash_opd', nodes=9)


def test_a_build_function_with_its_options_bound():
  """Its packaged drafter is found by the module it stands in."""
  decoder = specjax.load(method=functools.partial(dflash.build, nodes=3))
  assert (decoder.method.name, decoder.nodes) == ('dflash', 3)


@pytest.mark.parametrize(
  ('asked', 'message'),
  [
    (dict(method='nope'), 'choose one of ar, .*ddtree'),
    (dict(method='ddtree', budget=3), "no option 'budget'; it has nodes"),
    (dict(target=FOLDER / 'target', method='jetspec'), 'none is packaged'),
    (dict(method='lookup', drafter='x'), 'takes no drafter'),
    (dict(method='dflash', nodes=17), '1 .the anchor alone. to 16'),
    (dict(method='lookup', nodes=0), 'nodes is 0'),
    (dict(method='ddtree', nodes=0), 'nodes is 0'),
    (dict(method='ddtree', nodes=10**7), 'nodes is 10000000.*context.*1024'),
    (dict(method='dflash', coupled='yes'), "coupled is 'yes'; give True"),
    (dict(method='lookup', ngram=0), 'ngram is 0'),
    (dict(target='/no/such/folder'), '/no/such/folder does not exist'),
    (dict(dtype='int8'), 'auto, float32, bfloat16'),
    (dict(vocab='fr_spec'), "vocab is 'fr_spec'; give .*FrSpec"),
    (dict(method='dflash', vocab=FrSpec), 'with its settings'),
    (dict(vocab=FrSpec(ranks=[1])), "method 'ar' has no output rows"),
    (dict(method='lookup', vocab=EvoSpec(ranks=[1])), 'has no output rows'),
    (dict(method='dflash', vocab=FrSpec(ranks=[300])), 'ids 300 to 300'),
    (dict(method='dflash', vocab=EvoSpec(ranks=[1], buffer=260)), '259 tokens'),
    (dict(method='dflash', scorer='x'), 'leave scorer out'),
    (dict(method='dflash', drafter=3), '3 is no path'),
    (dict(method='caddtree', latency='no/such'), 'no latency table no/such'),
  ],
)
def test_what_cannot_be_loaded(asked, message, monkeypatch):
  """Said before weights are read."""
  reads = lambda *args, **kwargs: pytest.fail('reads weights first')
  monkeypatch.setattr(specjax.api, 'load_target', reads)
  with pytest.raises(ValueError, match=message):
    specjax.load(**asked)


@pytest.mark.parametrize(
  ('prompts', 'asked', 'message'),
  [
    ([''], {}, 'prompt 0 is empty'),
    ([], {}, 'no prompts'),
    ([[1, 260]], {}, 'holds id 260; ids are 0 to 259'),
    ('hi', dict(temperature=-0.1), 'temperature of row 0 is -0.1'),
    ('hi', dict(temperature=math.nan), 'temperature of row 0'),
    ('hi', dict(temperature=[0.0, 1.0]), '2 entries for 1 rows'),
    ('hi', dict(top_p=0.0), r'in \(0, 1\]'),
    ('hi', dict(top_k=-1), 'top_k of row 0'),
    ('hi', dict(min_p=1.0), r'in \[0, 1\)'),
    ('hi', dict(stop_ids=[260]), 'stop id 260 is out of range 0 to 259'),
    ('hi', dict(max_new_tokens=0), 'max_new_tokens of row 0'),
    ('hi', dict(max_new_tokens=1023), 'exceed the context of 1024'),
    ('hi', dict(seed=-1), 'seed of row 0'),
    ('hi', dict(n=0), 'n is 0'),
    ('hi', dict(stop=['']), 'none empty'),
    ('hi', dict(batch_size=0), 'batch_size is 0'),
    ('hi', dict(repetition_penalty=1.2), 'repetition_penalty is not supported'),
  ],
)
def test_what_cannot_be_asked(ar, prompts, asked, message):
  with pytest.raises(ValueError, match=message):
    ar.generate(prompts, **asked)
