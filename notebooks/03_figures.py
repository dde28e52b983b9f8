# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a run to a figure
#
# [![Open in Colab][badge]][colab]
#
# A published table is one gin file: `experiments.paper` measures it, a script
# of `experiments.figures` draws it. Here at the smallest size; the same lines
# with your own weights make the table of the paper, see
# [results](../docs/results.md).
#
# [badge]: https://colab.research.google.com/assets/colab-badge.svg
# [colab]: https://colab.research.google.com/github/OWNER/specjax/blob/main/notebooks/03_figures.ipynb

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec('specjax') is None:  # on Colab, say
  extras = 'specjax[notebooks,train] @ git+https://github.com/OWNER/specjax'
  pip = [sys.executable, '-m', 'pip', 'install', '-q', extras]
  subprocess.run(pip, check=True)

# %%
import pathlib
import tempfile

import gin
import matplotlib.pyplot as plt

from experiments import paper, run
from experiments.figures import depth, drawing, speedup
from experiments.paper_tables import overview
from experiments.tables import aligned

work = pathlib.Path(tempfile.mkdtemp())

# %% [markdown]
# **1. Rows.** What is bound here wins over the file.

# %%
run.parse(
  ['experiments/configs/paper/math500_speedup.gin'],
  [
    "paper_tables.SpeedUp.budgets = {'dflash': [16], 'ddtree': [9, 17]}",
    'paper_tables.SpeedUp.temperatures = [0.0]',
    'paper_tables.SpeedUp.split = False',
    'evaluate.evaluate.limit = 4',
    'evaluate.evaluate.max_new_tokens = 64',
    'evaluate.evaluate.repeats = 1',
  ],
)
rows = gin.get_configurable(paper.paper)(run_dir=work)
print(aligned(overview(rows), left=3))
assert all(row['texts_equal'] == row['prompts'] for row in rows)

# %% [markdown]
# Every text equals that of plain decoding. Speed-ups are those of this machine
# and of a target whose pass costs next to nothing; tokens per round depend on
# no machine.
#
# **2. A figure** is a list of marks and a function that draws them. Published
# rows are hollow, and the caption says who measured what.


# %%
def draw(plot):
  marks = plot.marks(rows)
  print(plot.caption(marks))
  plt.style.use(drawing.STYLE)
  plot.draw(plt.figure(figsize=plot.size(marks)), marks)


draw(speedup.FIGURE)
plt.show()

# %%
draw(depth.FIGURE)
plt.show()

# %% [markdown]
# **3. Files for a paper.** What `python -m experiments.figures.speedup RUN_DIR`
# writes.

# %%
marks = depth.FIGURE.marks(rows)
drawing.write(depth.FIGURE, marks, work / 'figures')
for path in sorted((work / 'figures').iterdir()):
  print(path.name, path.stat().st_size, 'bytes')
print((work / 'figures' / 'depth.csv').read_text()[:400])
