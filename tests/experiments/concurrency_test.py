"""Serving under load: what is counted, in turns, and when it pays off."""

import methods_fixture as fx
import pytest

from experiments import concurrency, run
from experiments.concurrency_summary import as_table, pays, summarise
from experiments.serving_load import Load
from specjax.decoder import Decoder

pytestmark = pytest.mark.usefixtures('quick_compiles')

SETTINGS = {
  **dict(methods=['lookup'], concurrencies=[2], chat=False, repeats=2),
  **dict(per_slot=2, max_new_tokens=6, stop_at_end=False, chunk=2),
}


@pytest.fixture
def tiny(monkeypatch):
  """`concurrency` with methods of the tiny target, on prompts of ids; the list
  of (nodes, slots) that were served, which raises where it is told to."""

  class Served(list):
    stop = None

  def load_all(methods, target, drafters, dtype):
    cases = {name: fx.make_case(name) for name in ('ar', *methods)}
    return {
      name: Decoder(method=c.method, params=c.params)
      for name, c in cases.items()
    }

  served, serve = Served(), Load.serve

  def counted(self, decoder):
    if len(served) == served.stop:
      raise KeyboardInterrupt
    served.append((decoder.method.name, self.slots))
    return serve(self, decoder)

  monkeypatch.setattr(concurrency, 'load_all', load_all)
  monkeypatch.setattr(
    concurrency, 'read_prompts', lambda name, limit: list(fx.PROMPTS)
  )
  monkeypatch.setattr(Load, 'serve', counted)
  return served


def test_turns_are_whole_and_made_once(tiny, tmp_path):
  """Catches methods that do not take turns, half a turn that is kept, and a
  text that depends on its neighbours."""
  tiny.stop = 3  # in the last turn
  with pytest.raises(KeyboardInterrupt):
    concurrency.concurrency(run_dir=tmp_path, **SETTINGS)
  assert tiny == [('ar', 2), ('lookup', 2), ('lookup', 2)]
  before = run.read_rows(tmp_path / concurrency.TURNS)
  assert len(before) == 2
  tiny.stop = None
  tiny.clear()
  rows = concurrency.concurrency(run_dir=tmp_path, **SETTINGS)
  assert tiny == [('lookup', 2), ('ar', 2)]
  turns = run.read_rows(tmp_path / concurrency.TURNS)
  assert turns[:2] == before and len(turns) == 4
  assert [(r['concurrency'], r['label']) for r in rows] == [
    *((2, 'ar'), (2, 'lookup'))
  ]
  # Two per slot, where there are three prompts.
  assert [r['requests'] for r in rows] == [4, 4]
  assert all(r['equal'] == r['requests'] for r in rows)
  assert all(r['tokens'] == 6 * r['requests'] for r in rows)
  plain = rows[0]
  assert plain['mean_accepted'] == plain['over_plain'] == 1
  assert plain['low'] <= plain['tokens_per_s'] <= plain['high']
  assert 0 < plain['first_p50_s'] <= plain['latency_p50_s']
  assert plain['latency_p50_s'] <= plain['latency_p95_s']
  wanted = 'device versions dtype temperature chunk prompt_set turns'
  assert set(wanted.split()) <= set(plain) and 'walks' not in plain
  # The fourth request is the first prompt's again.
  ids = turns[0]['ids']
  assert ids[0] == ids[3] and 'ids' not in turns[2]
  with pytest.raises(ValueError, match='chunk was 2 and is 3'):
    concurrency.concurrency(run_dir=tmp_path, **SETTINGS | {'chunk': 3})


def test_a_request_that_cannot_be_served(tiny):
  """Catches a refusal that counts as a fast answer."""
  case = fx.make_case('ar')
  load = Load(
    prompts=[[1, 2], [99]],
    count=2,
    slots=2,
    chunk=2,
    sampling=dict(max_new_tokens=3, temperature=0.0),
    stop_ids=(),
    seed=0,
  )
  with pytest.raises(ValueError, match=r'request 1: .*99'):
    load.serve(Decoder(method=case.method, params=case.params))


def turn(label, slots, number, seconds, digests=('a', 'b')):
  return dict(
    label=label,
    nodes=4,
    concurrency=slots,
    turn=number,
    seconds=seconds,
    latency_s=[seconds / 2, seconds],
    first_s=[0.1 * number, 0.2],
    tokens=[5, 7],
    walks=[[2, 2], [3, 3]] if label != 'ar' else [[1] * 4, [1] * 6],
    digests=list(digests),
  )


def test_summary_of_turns():
  """Catches means, ratios across turns, latencies of one turn only, and the
  prefill's token counted as a round's."""
  turns = [
    *(turn('ar', 2, t, s) for t, s in enumerate((2.0, 4.0, 12.0))),
    *(turn('new', 2, t, s) for t, s in enumerate((1.0, 4.0, 4.0))),
  ]
  turns[-1]['digests'] = ['a', 'x']
  plain, new, other = summarise([*turns, turn('ar', 4, 0, 1.0)])
  assert (other['concurrency'], other['tokens_per_s']) == (4, 12)
  assert (plain['tokens_per_s'], new['tokens_per_s']) == (3, 3)
  assert (new['low'], new['high'], plain['low']) == (3, 12, 1)
  assert (new['over_plain'], new['over_plain_low']) == (2, 1)
  assert new['over_plain_high'] == 3
  assert new['latency_p50_s'] == 2 and plain['latency_p95_s'] > 8
  assert new['mean_accepted'] == 10 / 4 and plain['mean_accepted'] == 1
  assert (plain['equal'], new['equal'], new['turns']) == (2, 1, 3)
  table = as_table([plain, new]).splitlines()
  assert table[2].split()[:5] == ['2', 'new', '4', '3.0', '2.00']
  assert table[2].endswith('1/2')


@pytest.mark.parametrize(
  'over, told',
  [
    ([1.5, 1.2, 1.1], 'm: pays off up to 8, the largest measured'),
    ([1.5, 1.2, 0.9], 'm: stops paying off above 4'),
    ([1.5, 0.9, 1.2], 'm: stops paying off above 1'),
    ([1.0, 1.2, 1.3], 'm: does not pay off, not even at 1'),
  ],
)
def test_where_a_method_stops_paying_off(over, told):
  rows = [
    {
      **{'label': label, 'concurrency': n, 'over_plain': x},
      **{'over_plain_low': 0.5, 'over_plain_high': 2.0},
    }
    for n, x in zip((1, 4, 8), over, strict=True)
    for label in ('ar', 'm')
  ]
  (line,) = pays(rows)
  assert line.startswith(told) and f'{over[1]:.2f} [0.50, 2.00] at 4' in line


def test_wrong_settings_cost_no_time(tmp_path, monkeypatch):
  monkeypatch.setattr(concurrency, 'load_all', lambda *a: pytest.fail('loads'))
  for changes, message in (
    ({'concurrencies': [1, 0]}, 'concurrencies is 0'),
    ({'repeats': 0}, 'repeats is 0'),
    ({'prompts': 'gsm8k'}, "prompts 'gsm8k' are neither"),
  ):
    with pytest.raises(ValueError, match=message):
      concurrency.concurrency(run_dir=tmp_path / 'x', **SETTINGS | changes)
  assert not (tmp_path / 'x').exists()
