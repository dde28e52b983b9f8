"""Prediction, never measurement: what a round should cost on a device.

  python -m experiments.roofline --target=qwen3-8b --device=h200 \
    --method=dflash --nodes=16 --accepted=7.83
  python -m experiments.roofline --published --out=docs

The first prints milliseconds of a plain step and of a round, and the speed-up;
the second predicts every row of the published tables and writes a CSV file and
the scatter plot. The model is `experiments/roofline_model.py`.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from experiments import roofline_presets as presets
from experiments import run
from experiments.roofline_model import Setting
from experiments.roofline_published import Row, as_csv, compare, read
from experiments.roofline_rounds import Prediction, predict
from specjax.weights.files import replacing

NAME = 'roofline_prediction'
TITLE = 'Prediction by a roofline model, not a measurement'
COLOURS = {  # Okabe and Ito's, told apart by colour-blind readers too
  'DFlash': '#0072B2',
  'Draft-OPD': '#56B4E9',
  'DDTree': '#E69F00',
  'TAPS': '#CC79A7',
  'TreeFlash': '#009E73',
  'EAGLE-3': '#D55E00',
}
MARKERS = {'gh200': 'o', 'a800': 's', 'a40': '^', 'h200': 'D'}

_FLAGS = run.flag_values(__name__)


def _flag(define, name: str, default, text: str):
  return define(name, default, text, flag_values=_FLAGS)


_TARGET = _flag(
  flags.DEFINE_string, 'target', 'qwen3-8b', 'A preset or a config.json.'
)
_DEVICE = _flag(
  flags.DEFINE_string, 'device', 'h200', f'{", ".join(presets.DEVICES)}.'
)
_METHOD = _flag(
  flags.DEFINE_string, 'method', 'dflash', f'{", ".join(presets.METHODS)}.'
)
_NODES = _flag(
  flags.DEFINE_integer, 'nodes', None, 'Rows verified, root included.'
)
_ACCEPTED = _flag(
  flags.DEFINE_float, 'accepted', 1.0, 'Mean tokens a round emits.'
)
_BATCH = _flag(flags.DEFINE_integer, 'batch', 1, 'Rows decoded together.')
_CONTEXT = _flag(flags.DEFINE_integer, 'context', 512, 'Tokens in the cache.')
_DEPTH = _flag(
  flags.DEFINE_integer, 'depth', None, 'Of EAGLE-3, lookup, draft_model.'
)
_WIDTH = _flag(
  flags.DEFINE_integer, 'width', None, 'Nodes EAGLE-3 continues per level.'
)
_DRAFTER = _flag(
  flags.DEFINE_string, 'drafter', 'qwen3-1.7b', 'Of draft_model; as target.'
)
_DRAFT_VOCAB = _flag(
  flags.DEFINE_integer, 'draft_vocab', None, "Rows of the drafter's head."
)
_GB_S = _flag(flags.DEFINE_float, 'gb_s', None, 'Memory, 1e9 bytes/s.')
_TFLOP_S = _flag(flags.DEFINE_float, 'tflop_s', None, 'Dense bf16, 1e12/s.')
_LAUNCH_US = _flag(flags.DEFINE_float, 'launch_us', None, 'Per kernel.')
_BOOKKEEPING_US = _flag(
  flags.DEFINE_float, 'bookkeeping_us', 50.0, 'Per round: tree, walk, writes.'
)
_PUBLISHED = _flag(
  flags.DEFINE_bool, 'published', False, 'Predict the published tables.'
)
_OUT = _flag(
  flags.DEFINE_string, 'out', 'runs/roofline', 'Folder for --published.'
)


def as_text(found: Prediction) -> str:
  """The figures of one prediction, labelled as such."""
  lines = [
    ('plain step', found.plain_ms, 'ms'),
    ('round', found.round_ms, 'ms'),
    ('  drafter', found.draft_ms, 'ms'),
    ('  target', found.verify_ms, 'ms'),
    ('  bookkeeping', found.bookkeeping_ms, 'ms'),
    ('speed-up', found.speed_up, 'x'),
    ('throughput', found.tokens_per_s, 'tokens/s'),
  ]
  rows = [f'{name:<14}{value:>11.3f} {unit}' for name, value, unit in lines]
  return '\n'.join([TITLE, *rows])


def plot(rows: Sequence[Row], folder: pathlib.Path) -> None:
  """Writes predicted against published as PNG and PDF.

  Raises:
    ValueError: matplotlib is not installed.
  """
  try:
    from matplotlib.backends import backend_agg, backend_pdf
    from matplotlib.figure import Figure
  except ImportError as e:
    raise ValueError(
      "the plot needs matplotlib: pip install 'specjax[notebooks]'."
    ) from e
  figure = Figure(figsize=(10, 5.2), layout='constrained')
  figure.suptitle(TITLE)
  for axes, unit in zip(
    figure.subplots(1, 2), ('speed-up', 'tokens/s'), strict=True
  ):
    _panel(axes, [r for r in rows if r.unit == unit and r.prediction], unit)
  for kind, canvas in (
    ('png', backend_agg.FigureCanvasAgg),
    ('pdf', backend_pdf.FigureCanvasPdf),
  ):
    undated = {'CreationDate': None} if kind == 'pdf' else None
    with replacing(folder / f'{NAME}.{kind}') as part:
      canvas(figure).print_figure(part, format=kind, dpi=150, metadata=undated)


def _panel(axes, rows: Sequence[Row], unit: str) -> None:
  for method, colour in COLOURS.items():
    for device, marker in MARKERS.items():
      some = [r for r in rows if (r.method, r.device) == (method, device)]
      if some:
        axes.scatter(
          [r.published for r in some],
          [r.prediction for r in some],
          c=colour,
          marker=marker,
          s=34,
          edgecolors='black',
          linewidths=0.4,
          label=f'{method}, {device.upper()}',
        )
  values = [x for r in rows for x in (r.published, r.prediction)]
  ends = min(values) / 1.1, max(values) * 1.1
  axes.plot(ends, ends, color='black', linewidth=0.8)
  axes.set(
    xscale='log',
    yscale='log',
    xlim=ends,
    ylim=ends,
    aspect='equal',
    xlabel=f'published, {unit}',
    ylabel=f'prediction, {unit}',
  )
  if unit == 'speed-up':  # under a decade, where powers of ten tell nothing
    ticks = range(1, 10)
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_yticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set(xlim=ends, ylim=ends)
  axes.legend(fontsize=7, loc='lower right' if unit == 'speed-up' else 'best')
  axes.grid(True, which='both', linewidth=0.2)


def main(argv: list[str]) -> None:
  if argv[1:]:
    sys.exit(f'unexpected argument {argv[1]!r}.')
  try:
    _published() if _PUBLISHED.value else print(as_text(_one()))
  except ValueError as e:
    sys.exit(str(e))


def _published() -> None:
  rows, folder = compare(read()), pathlib.Path(_OUT.value)
  folder.mkdir(parents=True, exist_ok=True)
  with replacing(folder / f'{NAME}.csv') as part:
    part.write_text(as_csv(rows), encoding='utf-8', newline='\n')
  plot(rows, folder)
  done = sum(row.prediction is not None for row in rows)
  print(f'{TITLE}: {done} rows predicted, {len(rows) - done} left out.')
  print(f'{folder / NAME}.csv, .png, .pdf')


def _one() -> Prediction:
  target = presets.target_of(_TARGET.value)
  device = presets.device_of(
    _DEVICE.value,
    gb_s=_GB_S.value,
    tflop_s=_TFLOP_S.value,
    launch_us=_LAUNCH_US.value,
  )
  drafter = presets.drafter_of(
    _METHOD.value,
    target,
    depth=_DEPTH.value,
    width=_WIDTH.value,
    model=presets.target_of(_DRAFTER.value),
  )
  nodes = _NODES.value
  if nodes is None:
    own = drafter.depth + 1 if drafter else 1
    nodes = presets.NODES.get(_METHOD.value, own)
  at = Setting(
    nodes=nodes,
    accepted=_ACCEPTED.value,
    batch=_BATCH.value,
    context=_CONTEXT.value,
    draft_vocab=_DRAFT_VOCAB.value,
    bookkeeping_us=_BOOKKEEPING_US.value,
  )
  return predict(target, drafter, device, at)


if __name__ == '__main__':
  app.run(main)
