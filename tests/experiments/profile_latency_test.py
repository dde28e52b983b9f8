"""The latency table: what is timed, and which number goes where."""

import pathlib
import subprocess
import sys

import jax
import methods_fixture as fx
import numpy as np
import pytest

from experiments import pieces, profile_latency
from specjax.decoder import Decoder
from specjax.methods import ddtree
from specjax.trees.costed import LatencyTable, target_sizes

pytestmark = pytest.mark.usefixtures('quick_compiles')

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def decoder():
  config = next(
    c
    for c in fx.drafter_configs(fx.CONFIG)
    if c['architectures'] == ['DFlashDraftModel']
  )
  case = fx.case_of(ddtree.build(fx.CONFIG, config, nodes=5))
  return Decoder(method=case.method, params=case.params)


def test_real_pieces_make_a_table(decoder, tmp_path):
  """Every piece compiles and runs; what is written can be read and used."""
  table = profile_latency.profile(
    decoder, sizes=(5, 1), contexts=(9,), batch=2, repeats=1, inner=2
  )
  assert (table.contexts, table.sizes) == ((9,), (1, 5))
  assert table.device == jax.devices()[0].device_kind
  assert (table.dtype, table.target) == ('float32', target_sizes(fx.CONFIG))
  table.check(fx.CONFIG, decoder.params.target.dtype)
  table.write(tmp_path / 'x.json')
  assert LatencyTable.read(tmp_path / 'x.json') == table
  text = profile_latency.as_text(table).splitlines()
  assert text[0].split() == ['context', '1', '5'] and text[1].split()[0] == '9'


def test_numbers_go_where_they_belong(decoder, monkeypatch):
  """Catches swapped axes, a size timed at another's rows, a mean instead of a
  median, seconds for milliseconds, and a commit that is not counted."""
  monkeypatch.setattr(
    profile_latency,
    'state_at',
    lambda decoder, context, batch: (context, batch),
  )
  for name, part in (
    ('drafted', lambda method, params, state: state),
    ('drafting', lambda method, params, state: (state, 1000)),
    ('committing', lambda method, params, state, drafted: (state, 2000)),
    ('checking', lambda method, params, state, drafted, n: (state, n)),
    ('job', lambda state, cost, count: (state, cost, count)),
  ):
    monkeypatch.setattr(pieces, name, part)

  def interleaved(jobs, *, repeats):
    assert repeats == 3
    assert {(batch, count) for (_, batch), _, count in jobs.values()} == {
      (2, 4)
    }
    cost = lambda context, n: n + context / 100
    return {
      name: [0, cost(context, n), 1e9]
      for name, ((context, _), n, _) in jobs.items()
    }

  monkeypatch.setattr(profile_latency, 'interleaved', interleaved)
  table = profile_latency.profile(
    decoder, sizes=(1, 3, 5), contexts=(40, 9), batch=2, repeats=3, inner=4
  )
  want = [[250 * (n + c / 100) for n in (1, 3, 5)] for c in (9, 40)]
  np.testing.assert_allclose(table.verify_ms, want)
  assert table.draft_ms == pytest.approx(250 * (3000 + 2 * 0.245))


def test_a_state_has_the_context_it_is_timed_at(decoder):
  """Catches one token more or less, and a row that is done already."""
  for context in (2, 33):
    state = profile_latency.state_at(decoder, context, 2)
    assert state.context.length_B.tolist() == [context] * 2
    assert not state.done_B.any()
    assert (state.limit_B >= context + decoder.method.path_rows).all()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'sizes': (1, 3)}, 'from 1 to 5'),
    ({'sizes': (0, 5)}, 'from 1 to 5'),
    ({'contexts': (9, 5000)}, 'allow 2 to 1018'),
    ({'contexts': (1,)}, 'allow 2 to 1018'),
    ({'inner': 0}, 'inner is 0'),
  ],
)
def test_wrong_settings_cost_no_time(decoder, monkeypatch, changes, message):
  monkeypatch.setattr(
    profile_latency, 'state_at', lambda *a: pytest.fail('reads first')
  )
  settings = {'sizes': (1, 5), 'contexts': (9,)} | changes
  with pytest.raises(ValueError, match=message):
    profile_latency.profile(decoder, **settings)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], 'error: say with --out'),
    (['--out=x', '--sizes=1,two'], 'error: sizes is 1,two'),
  ],
)
def test_command_line(flags, message):
  """Errors are one line, before any weight is read."""
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.profile_latency', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1 and done.stderr.startswith(message)
