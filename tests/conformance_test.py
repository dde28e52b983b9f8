"""Every method through one battery, and the battery against broken methods."""

import dataclasses

import conformance_checks as checks
import jax.numpy as jnp
import methods_fixture as fx
import pytest

from specjax.drafters.lookup import PromptLookup
from specjax.methods import lookup
from specjax.models import cache
from specjax.verify.follow import Follow

pytestmark = pytest.mark.usefixtures('quick_compiles')


@pytest.fixture(scope='module')
def plain():
  return fx.make_case('ar')


@pytest.fixture(scope='module', params=fx.case_names())
def name(request):
  return request.param


@pytest.fixture(scope='module')
def case(name):
  return fx.make_case(name)


class TestConformance:
  """One test per check; their docstrings say what each is about."""

  def test_greedy_text_is_plain_decoding(self, case, plain):
    checks.check_greedy(case, plain)

  def test_sampled_text_is_plain_sampling(self, case, plain):
    checks.check_sampled(case, plain)

  def test_a_row_alone_gives_the_same(self, case):
    checks.check_batch(case)

  def test_neighbours_do_not_matter(self, case):
    checks.check_neighbours(case)

  def test_one_compile_per_shape(self, case):
    checks.check_compiles_once(case)

  def test_saved_between_rounds(self, case, tmp_path):
    checks.check_save_and_restore(case, tmp_path)

  def test_trees_are_well_formed(self, case):
    checks.check_trees(case)

  def test_dead_slots_are_not_read(self, case):
    checks.check_dead_slots(case)

  def test_drafts_are_kept_and_dropped(self, case):
    checks.check_something_accepted(case)

  def test_built_twice_is_one_static_object(self, name, case):
    """A method that differs from its twin would recompile on every load."""
    twin = fx.make_case(name).method
    assert twin == case.method and hash(twin) == hash(case.method)


class TestConformanceWithoutJit:
  """Methods only: what a variant is put together from is in them."""

  @pytest.mark.parametrize('name', fx.method_names(), scope='module')
  def test_two_rounds(self, name):
    checks.check_no_jit(fx.make_case(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneTooMany:
  """Keeps one node more than the target agreed to."""

  lossless: bool = True

  def __call__(self, tree, logits_BNV, round):
    verdict = Follow()(tree, logits_BNV, round)
    rows = tree.path_rows
    length_B = jnp.minimum(verdict.length_B + 1, rows)
    row_P = jnp.arange(rows)
    path_BP = jnp.where(row_P < length_B[:, None], row_P, -1)
    return verdict.replace(length_B=length_B, path_BP=path_BP)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaleNoise:
  """Draws every depth with the noise of the first."""

  lossless: bool = True

  def __call__(self, tree, logits_BNV, round):
    if not round.sampling.all_greedy:
      first = jnp.broadcast_to(round.noise_BPV[:, :1], round.noise_BPV.shape)
      round = round.replace(noise_BPV=first)
    return Follow()(tree, logits_BNV, round)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbourly(PromptLookup):
  """Reads the first row's text for all rows; lossless all the same."""

  def begin(self, params, target, state, round, ask):
    same = lambda x: jnp.broadcast_to(x[:1], x.shape)
    context = round.context.replace(
      tokens_BT=same(round.context.tokens_BT),
      length_B=same(round.context.length_B),
    )
    round = round.replace(context=context)
    return super().begin(params, target, state, round, ask)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaky(PromptLookup):
  """Looks at all slots of a cache of its own and falls silent on NaN."""

  def start(self, params, target, batch, capacity):
    return cache.empty(target.config, batch, capacity, jnp.float32, layers=1)

  def begin(self, params, target, state, round, ask):
    root, copied_BP = super().begin(params, target, state, round, ask)
    spoilt_B = jnp.isnan(jnp.sum(state.k_LBKSH, axis=(0, 2, 3, 4)))
    logq_BWC = jnp.where(spoilt_B[:, None, None], -jnp.inf, root.logq_BWC)
    return root.replace(logq_BWC=logq_BWC), copied_BP

  def commit(self, params, target, state, scratch, accepted):
    return state


def _broken(**parts) -> fx.Case:
  return fx.case_of(dataclasses.replace(lookup.build(), **parts))


class TestPower:
  """Each check fails on a method that breaks what it is about."""

  def test_greedy_check_sees_a_node_too_many(self, plain):
    with pytest.raises(AssertionError, match='differs from token'):
      checks.check_greedy(_broken(verify=OneTooMany()), plain)

  def test_sampled_check_sees_stale_noise(self, plain, monkeypatch):
    # Judged as `Follow`, which the broken rule claims to be.
    monkeypatch.setattr(checks, 'Follow', StaleNoise)
    with pytest.raises(AssertionError, match='differs from token'):
      checks.check_sampled(_broken(verify=StaleNoise()), plain)

  def test_support_check_sees_a_foreign_token(self, plain):
    # Not a `Follow`, so only the law's support can tell.
    with pytest.raises(AssertionError, match='left the cut law'):
      checks.check_sampled(_broken(verify=OneTooMany()), plain)

  def test_batch_checks_see_a_shared_row(self, plain):
    case = _broken(drafter=Neighbourly())
    checks.check_greedy(case, plain)  # the texts are right all the same
    with pytest.raises(AssertionError, match='walks of row'):
      checks.check_batch(case)

  def test_dead_slot_check_sees_a_reader(self):
    with pytest.raises(AssertionError):
      checks.check_dead_slots(_broken(drafter=Leaky()))
