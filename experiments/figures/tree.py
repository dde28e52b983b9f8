"""A picture of one round: a draft tree, and the path that was accepted.

  python -m experiments.figures.tree --method=treeflash --out=tree.png

The round is one of a real decode, greedy and at batch 1.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags

import specjax
from experiments import run
from experiments.figures import drawing
from experiments.prompts import read_prompts, to_ask
from experiments.states import after_prompt
from specjax.checks import check_whole
from specjax.decode import round as round_lib
from specjax.decoder import Decoder
from specjax.inputs import make_rows
from specjax.types import TokenTree, Verdict
from specjax.weights.files import replacing

_FLAGS = run.flag_values(__name__)
_TARGET = flags.DEFINE_string(
  'target', 'default', 'Folder or hub id.', flag_values=_FLAGS
)
_METHOD = flags.DEFINE_string(
  'method', 'treeflash', 'One that drafts a tree.', flag_values=_FLAGS
)
_DRAFTER = flags.DEFINE_string(
  'drafter', None, "Folder; None: the method's.", flag_values=_FLAGS
)
_NODES = flags.DEFINE_integer(
  'nodes', 24, 'Rows, root included.', flag_values=_FLAGS
)
_PROMPTS = flags.DEFINE_string(
  'prompts', 'gsm8k_test_20', 'Name or path.', flag_values=_FLAGS
)
_LINE = flags.DEFINE_integer(
  'line', 0, 'Which prompt, from 0.', flag_values=_FLAGS
)
_ROUND = flags.DEFINE_integer(
  'round', 0, 'Which round, from 0.', flag_values=_FLAGS
)
_OUT = flags.DEFINE_string(
  'out', None, 'PNG, PDF or SVG.', required=True, flag_values=_FLAGS
)


def one_round(
  decoder: Decoder, prompt: Any, number: int
) -> tuple[TokenTree, Verdict]:
  """TokenTree and verdict of a round behind a prompt, greedy.

  Raises:
    ValueError: the text ends before that round.
  """
  method, params, config = decoder.method, decoder.params, decoder.config
  ids = decoder.encode(prompt)
  room = max(config.max_length - len(ids), 1)
  rows = make_rows(
    [ids],
    vocab=config.vocab,
    max_length=config.max_length,
    max_new_tokens=min((number + 2) * method.path_rows, room),
    stop_ids=decoder.ends(None, ())[0],
  )
  state = after_prompt(method, params, rows)

  @jax.jit
  def step(params, state):
    opened = round_lib.open_round(method, params, state)
    tree, scratch = round_lib.draft(method, params, state, opened)
    checked = round_lib.verify(method, params, state, tree, opened)
    path = round_lib.along(tree, *checked)
    state = round_lib.commit(method, params, state, scratch, path)
    return tree, checked[-1], state

  for _ in range(number + 1):
    if bool(state.done_B[0]):
      raise ValueError(f'the text ends before round {number}; ask for less.')
    tree, verdict, state = step(params, state)
  return tree, verdict


def draw(
  axes: Any, tree: TokenTree, verdict: Verdict, word: Callable[[int], str]
) -> None:
  """Row 0 of a batch: its tree from the root down, the accepted path in colour.

  A node shows its token and the drafter's probability of the whole prefix.

  Args:
    axes: of matplotlib.
    tree: that was verified.
    verdict: the path, and the bonus token behind it.
    word: what a token is called.
  """
  fields = tree.token_BN, tree.parent_BN, tree.depth_BN, tree.logq_BN
  token, parent, depth, logq = (np.asarray(x)[0] for x in fields)
  nodes = np.flatnonzero(tree.valid_BN[0])
  path = verdict.path_BP[0, : verdict.length_B[0]].tolist()
  leaves, across = itertools.count(), {}

  def place(node: int) -> float:
    """A leaf beside the last one; a parent in the middle of its children."""
    below = [place(n) for n in nodes[1:] if parent[n] == node]
    across[node] = sum(below) / len(below) if below else next(leaves)
    return across[node]

  def mark(x, y, token, note, colour):
    box = dict(boxstyle='round', facecolor=colour, edgecolor='0.5')
    label = f'{word(int(token))}\n{note}'
    axes.text(x, y, label, bbox=box, fontsize=7, ha='center', va='center')

  place(0)
  for n in nodes:
    kept = n in path
    ends = [across[n], across[parent[n]]], [-depth[n], -depth[parent[n]]]
    axes.plot(*ends, color='tab:green' if kept else '0.8', zorder=0)
    note = 'root' if n == 0 else f'{np.exp(logq[n]):.2f}'
    colour = 'palegreen' if kept else 'white'
    mark(across[n], -depth[n], token[n], note, colour)
  x, y = across[path[-1]] + 0.7, -depth[path[-1]] - 1
  axes.plot([across[path[-1]], x], [1 + y, y], ':', color='tab:orange')
  mark(x, y, verdict.bonus_B[0], 'bonus', 'moccasin')
  axes.set_axis_off()


def show() -> None:
  """Flags to a picture, and what is on it."""
  check_whole(0, line=_LINE.value, round=_ROUND.value)
  prompts = read_prompts(_PROMPTS.value, limit=_LINE.value + 1)
  if len(prompts) <= _LINE.value:
    raise ValueError(
      f'{_PROMPTS.value} has no line {_LINE.value}; ask for less.'
    )
  decoder = specjax.load(
    _TARGET.value, _METHOD.value, _DRAFTER.value, nodes=_NODES.value
  )
  tree, verdict = one_round(decoder, to_ask(prompts)[-1], _ROUND.value)
  words = lambda token: repr(decoder.tokenizer.decode([token]))
  out = pathlib.Path(_OUT.value)
  with drawing.styled():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout='constrained')
    draw(figure.subplots(), tree, verdict, words)
    with replacing(out) as part:
      figure.savefig(part, format=out.suffix[1:] or 'png')
  length = int(verdict.length_B[0])
  print(f'{length} tokens of {decoder.nodes} rows were kept; wrote {out}')


main = run.command(show)


if __name__ == '__main__':
  app.run(main)
