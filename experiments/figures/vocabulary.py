"""Tokens per second against the size of the draft vocabulary.

  python -m experiments.figures.vocabulary RUN_DIR

RUN_DIR is that of `python -m experiments.paper` with med_vocabulary.gin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import app

from experiments.figures import drawing, marks
from experiments.figures.drawing import Plot
from experiments.figures.marks import MEASURED, PUBLISHED, Mark
from experiments.summary import PLAIN

NOT_GIVEN = 'not given'
LISTS = {  # lines by buffer: colours from light to dark
  'FR-Spec': '#999999',
  'EvoSpec': ('#56B4E9', '#0072B2', '#332288', '#000000'),
}


def marks_of(rows: Sequence[Mark]) -> list[Mark]:
  """Published rows, then ours; a whole vocabulary has no list."""
  found = [_published(*pair) for pair in marks.published('med_throughput')]
  for row, who in marks.measured(rows, 'vocabulary'):
    if row['label'] == PLAIN:
      continue
    kind = 'whole vocabulary'
    if row['list']:
      kind = 'EvoSpec' if row['buffer'] else 'FR-Spec'
    found.append(
      {
        **who,
        'method': kind,
        'drafter': who['method'],
        'list': row['list'],
        'buffer': row['buffer'],
        'tokens_per_s': row['tokens_per_s'],
        'speed_up': row['speed_up'],
        'low': row['speed_up_low'],
        'high': row['speed_up_high'],
        'accepted': row['mean_accepted'],
        'prompts': row['prompts'],
        'equal': row['texts_equal'],
        'dtype': row['dtype'],
      }
    )
  return found


def _published(row: dict[str, str], found: Any) -> Mark:
  own = row['architecture'] == 'Decoupled'
  size, buffer = row['static_vocab_k'], row['dynamic_buffer']
  return {
    'source': PUBLISHED,
    'study': marks.study_of('med_throughput', row),
    'method': row['method'],
    'target': row['target'] or NOT_GIVEN,
    'device': NOT_GIVEN,
    'drafter': f'draft model {row["draft_model"]}' if own else 'EAGLE-3',
    'list': 1000 * int(size) if size else None,
    'buffer': int(buffer) if buffer else None,
    'tokens_per_s': float(row['throughput_tok_s']),
  }


def _panels(found: Sequence[Mark]) -> list[tuple[str, str, str]]:
  """(target, drafter, device): what is compared within one panel."""
  return list(dict.fromkeys(_panel(m) for m in found))


def _panel(mark: Mark) -> tuple[str, str, str]:
  return mark['target'], mark['drafter'], mark['device']


def draw(figure: Any, found: Sequence[Mark]) -> None:
  """A panel per target, drafter and device; a line per size of buffer."""
  panels = _panels(found)
  for axes, panel in zip(
    drawing.grid(figure, len(panels)), panels, strict=True
  ):
    some = [m for m in found if _panel(m) == panel]
    cut = [m for m in some if m['list']]
    buffers = sorted({m['buffer'] for m in cut if m['buffer']})
    for source in (PUBLISHED, MEASURED):
      for buffer in (None, *buffers):
        _line(axes, [m for m in cut if m['source'] == source], buffer, buffers)
    for mark in some:
      if not mark['list']:
        axes.axhline(
          mark['tokens_per_s'],
          color='#D55E00',
          linewidth=0.8,
          linestyle=drawing.look(mark)['linestyle'],
          label=mark['method'],
        )
    if cut:
      drawing.powers_of_two(axes, [m['list'] for m in cut])
    axes.set(
      title=f'target {panel[0]}\n{panel[1]}; device {panel[2]}',
      xlabel='tokens in the list',
      ylabel='tokens per second',
    )
    axes.legend()


def _line(
  axes: Any, some: Sequence[Mark], buffer: int | None, buffers: Sequence[int]
) -> None:
  """The sizes of list with one size of buffer."""
  line = [m for m in some if (m['buffer'] or None) == buffer]
  if not line:
    return
  line.sort(key=lambda m: m['list'])
  colour, label = LISTS['FR-Spec'], 'list alone (FR-Spec)'
  if buffer is not None:
    shades = LISTS['EvoSpec']
    colour = shades[min(buffers.index(buffer), len(shades) - 1)]
    label = f'buffer of {buffer} (EvoSpec)'
  style = drawing.look(line[0]) | {'color': colour, 'markeredgecolor': colour}
  if line[0]['source'] == MEASURED:
    style['markerfacecolor'] = colour
  axes.plot(
    [m['list'] for m in line],
    [m['tokens_per_s'] for m in line],
    label=label,
    **style,
  )


FIGURE = Plot(
  name='vocabulary',
  tables=('vocabulary',),
  title='Tokens per second against draft vocabulary and buffer',
  marks=marks_of,
  draw=draw,
  size=lambda found: drawing.sized(len(_panels(found)), legend=0, panel=3),
  about='Tokens per second with a draft vocabulary cut to a list of frequent '
  'tokens, and with a buffer of rare ones beside it; lines across are the '
  'whole vocabulary. The published rows are of medical questions; neither '
  'their hardware nor, for EAGLE-3, the target is in the table.',
  columns=(
    *marks.WHO,
    *('drafter', 'list', 'buffer', 'tokens_per_s', 'speed_up', 'low', 'high'),
    *('accepted', 'prompts', 'equal', 'dtype'),
  ),
  tex={
    **marks.WHO_TEX,
    'drafter': 'drafter',
    'list': 'list',
    'buffer': 'buffer',
    'tokens_per_s': 'tokens/s',
    'speed_up': 'speed-up',
    'accepted': 'accepted',
  },
)
main = drawing.command(FIGURE)


if __name__ == '__main__':
  drawing.define_flags()
  app.run(main)
