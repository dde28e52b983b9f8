"""Small cases that once failed."""

from __future__ import annotations

import pytest

import specjax


@pytest.mark.parametrize('nodes', [1, 2])
def test_treeflash_with_a_tree_of_at_most_one_level(nodes):
  """No transition below the root: the tables are empty, not undefined."""
  ids = list(b'Natalia sold clips to 48 of her friends in April.\n')
  asked = {'max_new_tokens': 6, 'temperature': 0.7, 'seed': 9}
  plain = specjax.load().generate([ids], **asked)
  out = specjax.load(method='treeflash', nodes=nodes).generate([ids], **asked)
  assert out.tokens == plain.tokens


@pytest.mark.parametrize('method', ['lookup', 'dflash', 'ddtree', 'treeflash'])
def test_nodes_must_be_whole(method):
  """Fails while loading, and not in the middle of a trace."""
  with pytest.raises(ValueError, match='nodes'):
    specjax.load(method=method, nodes=2.5)


def test_ids_that_are_not_whole_are_refused():
  """`int` would cut 1.5 to another token without a word."""
  with pytest.raises(ValueError, match='id'):
    specjax.load().generate([[1.5, 2]], max_new_tokens=1)


def test_stop_strings_are_checked_before_work():
  with pytest.raises(ValueError, match='stop'):
    specjax.load().generate([[1, 2]], max_new_tokens=1, stop=[3])
