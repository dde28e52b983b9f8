"""What a build of the packaged default leaves, stage by stage."""

import json
import pathlib
import types

import pytest

from experiments import build_default, cards, run
from experiments.build_default import Work, build, pack
from specjax import packaged


@pytest.fixture
def work(tmp_path):
  return Work(tmp_path / 'out', 'train.jsonl')


def test_done_stages_are_passed_over(work, monkeypatch):
  """And one that failed is not done, its time is kept."""
  calls = []

  def fails(work):
    calls.append('second')
    if len(calls) < 3:
      raise KeyboardInterrupt

  stages = {'first': lambda work: calls.append('first'), 'second': fails}
  monkeypatch.setattr(build_default, 'STAGES', stages)
  with pytest.raises(KeyboardInterrupt):
    build(work, [])
  build(work, [])
  build(work, [])
  assert calls == ['first', 'second', 'second']
  times = json.loads((work.out / build_default.TIMES).read_text())
  assert all(entry['done'] for entry in times.values())
  with pytest.raises(ValueError, match=r"no stage \['third'\]; choose of"):
    build(work, ['third'])


def test_the_spec_is_what_is_packaged(work):
  """Otherwise the command would build another model than the shipped one."""
  build_default.spec(work)
  made = json.loads((work.out / 'spec/config.json').read_text())
  path = packaged.PRETRAINED / 'target' / 'config.json'
  assert made == json.loads(path.read_text())


def test_lists_and_cards(work):
  """Only what is there is listed; a card names data, command and figures."""
  folder = work.package / 'dflash'
  folder.mkdir(parents=True)
  for name in ('config.json', 'model.safetensors'):
    source = packaged.PRETRAINED / 'dflash' / name
    (folder / name).write_bytes(source.read_bytes())
  record = work.out / 'runs/dflash'
  record.mkdir(parents=True)
  row = {'step': 7, 'ce': 1.5, 'accepted': 3.0, 'low': 2.5, 'high': 3.5}
  run.append_rows(record / 'train.jsonl', [row])
  (record / run.CONFIG).write_text('held_out.HeldOut.limit = 12\n')
  (work.out / build_default.TIMES).write_text('{"dflash": {"seconds": 120}}')
  pack(work)
  listed = json.loads((work.package / 'drafters.json').read_text())
  assert set(listed.values()) == {'dflash'} and 'ddtree' in listed
  assert json.loads((work.package / 'scorers.json').read_text()) == {}
  card = (folder / 'README.md').read_text()
  for said in ('1,623,936 parameters', '--only=dflash', '2 minutes', '7 steps'):
    assert said in card
  assert 'on 12 questions' in card
  assert 'ce 1.5, accepted 3 [2.50, 3.50]' in card


def test_what_is_missing_is_not_installed(work, monkeypatch, capsys):
  """It would take drafters from the package that others find there."""
  monkeypatch.setattr(build_default, 'LEAST', 1)
  monkeypatch.setattr(build_default, 'STAGES', {'spec': lambda work: None})
  work.out.mkdir()
  prompts = work.out / 'train.jsonl'
  prompts.write_text('{"prompt": "one"}\n')
  flags = {'_OUT': work.out, '_PROMPTS': prompts, '_ONLY': [], '_INSTALL': True}
  for name, value in flags.items():
    value = str(value) if isinstance(value, pathlib.Path) else value
    holder = types.SimpleNamespace(value=value)
    monkeypatch.setattr(build_default, name, holder)
  before = (packaged.PRETRAINED / 'drafters.json').read_text()
  with pytest.raises(ValueError, match='has no target, draft_model'):
    build_default.run_all()
  assert (packaged.PRETRAINED / 'drafters.json').read_text() == before
  monkeypatch.setattr(build_default._INSTALL, 'value', False)
  build_default.run_all()
  assert 'lacks target' in capsys.readouterr().out
  monkeypatch.setattr(build_default, 'LEAST', 2)
  with pytest.raises(ValueError, match='fewer than 2 lines'):
    build_default.run_all()


def test_every_packaged_model_has_a_card():
  """And says what it is; those of the package are as `pack` lists them."""
  assert {*packaged.drafters(packaged.PRETRAINED)} <= cards.WHAT.keys()
  for folder in packaged.PRETRAINED.iterdir():
    if folder.is_dir():
      assert cards.WHAT[folder.name] in (folder / 'README.md').read_text()
  size = sum(p.stat().st_size for p in packaged.PRETRAINED.rglob('*.*'))
  assert size < 25e6
