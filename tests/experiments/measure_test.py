"""Turns, shares and comparisons, with decoders that only pretend."""

import types

import pytest

from experiments.measure import Bench, measure
from experiments.summary import as_table, summarise
from specjax.generation import Generation, Stats


class Pretender:
  """Answers prompt [p] with `answer` and says it took the next seconds."""

  def __init__(self, name, calls, *, answer, walks, seconds):
    self.method = types.SimpleNamespace(
      name=name, path_rows=4, verify=types.SimpleNamespace(lossless=True)
    )
    self.nodes, self.dtype = 4, 'float32'
    self.calls, self.answer, self.walks = calls, answer, walks
    self.seconds = iter(seconds)

  def generate(self, prompts, *, seed, **settings):
    self.calls.append((self.method.name, [p[0] for p in prompts], seed))
    stats = Stats(
      tokens=0,
      rounds=0,
      mean_accepted=0.0,
      tau_paper=0.0,
      prefill_s=0.5,
      decode_s=next(self.seconds),
      tokens_per_s=0.0,
      compile_s=0.0,
    )
    return Generation(
      tokens=[[*self.answer, p[0]] for p in prompts],
      text=None,
      accepted=[self.walks for _ in prompts],
      finish_reason=['length' for _ in prompts],
      logprobs=None,
      prompt_tokens=[len(p) for p in prompts],
      stats=stats,
    )


def bench_of(calls, other_answer=(7, 8, 9)):
  # The first seconds are the warm-up's and must not count.
  plain = Pretender(
    'ar', calls, answer=(7, 8, 9), walks=[1, 1, 1], seconds=[99, 6, 90, 8]
  )
  other = Pretender(
    'new', calls, answer=other_answer, walks=[2, 3], seconds=[99, 2, 4, 30]
  )
  return Bench(
    decoders={'ar': plain, 'new': other},
    prompts=[[11], [12], [13]],
    generate={'max_new_tokens': 4, 'pad_to': 0},
    seed=100,
    repeats=3,
    constants={'device': 'none', 'prompt_set': 'three'},
  )


def test_methods_take_turns_and_medians_count():
  """Catches blocks of one method, a timed warm-up, a mean, a whole batch's
  seconds given to each prompt, and seeds that depend on the batch."""
  calls = []
  rows = measure(bench_of(calls), range(0, 2), [])
  names = [name for name, *_ in calls]
  assert names == ['ar', 'new', *('ar', 'new'), *('new', 'ar'), *('ar', 'new')]
  assert all(call[1:] == ([11, 12], [100, 101]) for call in calls)
  figures = [(r['label'], r['prompt'], r['decode_s']) for r in rows]
  assert figures == [
    *(('ar', 0, 4), ('ar', 1, 4), ('new', 0, 2), ('new', 1, 2))
  ]
  first, last = rows[0], rows[-1]
  assert (first['tokens'], first['rounds'], first['mean_accepted']) == (4, 3, 1)
  assert first['tokens_per_s'] == 3 / 4
  assert (last['mean_accepted'], last['tau_paper']) == (1.5, 2.5)
  assert all(row['equal'] and row['device'] == 'none' for row in rows)


def test_only_missing_cells_are_decoded():
  calls = []
  done = measure(bench_of([]), range(0, 2), [])
  assert measure(bench_of(calls), range(0, 2), done) == []
  assert calls == []
  made = measure(bench_of(calls), range(0, 2), done[:2])
  assert [(r['label'], r['prompt'], r['equal']) for r in made] == [
    *(('new', 0, True), ('new', 1, True))
  ]
  assert {name for name, *_ in calls} == {'new'}


def test_a_wrong_text_is_seen_and_counted():
  """Catches a comparison that cannot fail."""
  rows = measure(bench_of([], other_answer=(7, 0, 9)), range(0, 2), [])
  plain, other = summarise(rows)
  assert (plain['texts_equal'], other['texts_equal']) == (2, 0)
  assert as_table([plain, other]).splitlines()[-1].endswith('0/2')


def test_summary_pools_over_prompts():
  rows = measure(bench_of([]), range(0, 2), [])
  plain, other = summarise(rows)
  assert plain['speed_up'] == 1 and other['speed_up'] == pytest.approx(2)
  assert (other['tokens'], other['rounds'], other['prompts']) == (8, 4, 2)
  assert other['mean_accepted'] == 6 / 4
  assert (other['mean_accepted_low'], other['mean_accepted_high']) == (1.5, 1.5)
  assert other['acceptance_by_depth'] == [1, 0.5, 0]
  assert other['tokens_per_s'] == pytest.approx(6 / 4)
  assert other['prompt_set'] == 'three' and 'ids' not in other
  table = as_table([plain, other]).splitlines()
  assert table[0].split()[:2] == ['method', 'nodes']
  assert len({len(line) for line in table}) == 1
