"""Trees that are as large as pays, by measured costs."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.trees.best_first import BestFirst
from specjax.types import Array, Ask, Candidates, Round, TokenTree

REMEDY = 'measure one with `python -m experiments.profile_latency`.'
SIZES = (
  *('vocab', 'width', 'layers', 'q_heads', 'kv_heads', 'head_dim', 'mlp'),
  *('experts', 'experts_per_token', 'expert_mlp'),
)


DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyTable:
  """What rounds cost on one device; hashable, and so part of a program.

  Args:
    contexts: committed tokens, rising.
    sizes: rows verified, root included, rising.
    verify_ms: [context][size], a pass over a tree of so many rows with its
      head, its rule and the gather along the path.
    draft_ms: all of a round that does not depend on the size.
    device: `device_kind` of what it was measured on.
    dtype: of the target's weights.
    target: the target's sizes, see `target_sizes`.

  Raises:
    ValueError: numbers that are no costs, or of another shape.
  """

  contexts: tuple[int, ...]
  sizes: tuple[int, ...]
  verify_ms: tuple[tuple[float, ...], ...]
  draft_ms: float
  device: str
  dtype: str
  target: tuple[tuple[str, int], ...]

  def __post_init__(self):
    for name in ('contexts', 'sizes'):
      _check_rising(name, getattr(self, name))
    shape = (len(self.contexts), len(self.sizes))
    widths = {len(row) for row in self.verify_ms}
    if len(self.verify_ms) != shape[0] or widths != {shape[1]}:
      raise ValueError(
        f'verify_ms has {len(self.verify_ms)} rows of {sorted(widths)} costs; '
        f'{shape[0]} contexts and {shape[1]} sizes need one for each pair.'
      )
    if self.dtype not in DTYPES:
      raise ValueError(f'dtype is {self.dtype!r}; it is one of {DTYPES}.')
    names = [pair[:1] for pair in self.target]
    if names != [(name,) for name in SIZES]:
      raise ValueError(
        f'target is {self.target!r}; it is pairs of {", ".join(SIZES)} with '
        'their values.'
      )
    for cost in (self.draft_ms, *(x for row in self.verify_ms for x in row)):
      if not math.isfinite(cost) or cost <= 0:
        raise ValueError(f'a cost is {cost} ms; costs are finite and above 0.')

  def costs(self, sizes: tuple[int, ...], length: Array) -> Array:
    """float32[len(sizes)]: ms of a round at a context of `length` tokens.

    Linear between contexts, clamped outside. A running maximum over sizes keeps
    noise from saying that more rows cost less.
    """
    verify_ms = np.maximum.accumulate(np.asarray(self.verify_ms), axis=1)
    column = [self.sizes.index(n) for n in sizes]
    at = lambda cost_X: jnp.interp(
      length.astype(jnp.float32),
      jnp.asarray(self.contexts, jnp.float32),
      cost_X,
    )
    cost_JX = jnp.asarray(verify_ms[:, column].T, jnp.float32)
    return self.draft_ms + jax.vmap(at)(cost_JX)

  def check(self, target_config: Any, dtype: Any = None) -> None:
    """Raises ValueError, which names both, for a table of something else."""
    sizes = target_sizes(target_config)
    other = [
      f'{name} {dict(self.target).get(name)} and not {size}'
      for name, size in sizes
      if dict(self.target).get(name) != size
    ]
    device = jax.devices()[0].device_kind
    if self.device != device:
      other.append(f'device {self.device!r} and not {device!r}')
    if dtype is not None and jnp.dtype(self.dtype) != dtype:
      other.append(f'dtype {self.dtype} and not {jnp.dtype(dtype)}')
    if other:
      raise ValueError(
        f'the latency table is of {", ".join(other)}; costs are not portable: '
        + REMEDY
      )

  def write(self, path: str | pathlib.Path, **notes: Any) -> None:
    """As JSON; `notes` are for readers of the file."""
    content = json.dumps({**dataclasses.asdict(self), 'notes': notes}, indent=1)
    pathlib.Path(path).write_text(content + '\n')

  @classmethod
  def read(cls, path: str | pathlib.Path) -> LatencyTable:
    """What `write` wrote.

    Raises:
      ValueError: names the file and what is wrong with it.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    try:
      content = json.loads(pathlib.Path(path).read_text())
      return cls(**{name: _frozen(content[name]) for name in names})
    except FileNotFoundError:
      raise ValueError(f'there is no latency table {path}; {REMEDY}') from None
    except OSError as error:
      raise ValueError(f'{path} cannot be read ({error}); {REMEDY}') from None
    except KeyError as error:
      raise ValueError(f'{path} has no {error}; {REMEDY}') from None
    except (TypeError, ValueError) as error:
      raise ValueError(
        f'{path} is no latency table ({error}); {REMEDY}'
      ) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costed:
  """A best-first tree, of which a round verifies what pays.

  CaDDTree (arXiv:2606.01813): the number of nodes that maximises the tokens
  expected per second, (1 + sum of the nodes' probabilities) over the cost of
  drafting and of a pass over so many rows. The reference code adds node by
  node until the next one does not pay, on a host, and so has as many shapes as
  there are sizes. In a compiled loop a pass costs what its padded shape costs;
  our choice is a few sizes, all tried, the smallest of those that are equal,
  with every one filled: see `method.SizedTree`. With one size per number of
  nodes and convex costs both rules agree.

  Nodes stand in order of falling score, so that the first n rows are the best
  tree of n rows. The batch takes one size: the largest sum over its live rows,
  at the cost of the longest. So accepted lengths may depend on the neighbours;
  texts do not.

  Scores are taken as probabilities of acceptance, as they are: at temperature
  1 whatever the row's, or, where drafts are coupled, given the noise. Errors of
  either cost speed only.

  A table's contexts are committed tokens. Where attention reads all slots of
  the cache and not only the live ones, a long cache costs more than its tokens
  say.

  Args:
    tree: grown in every round.
    sizes: rows verified, root included, rising to `tree.nodes`.
    table: holds all of them.

  Raises:
    ValueError: sizes that do not end with the whole tree, or without a cost.
  """

  tree: BestFirst
  sizes: tuple[int, ...]
  table: LatencyTable

  def __post_init__(self):
    _check_rising('sizes', self.sizes)
    if self.sizes[-1] != self.tree.nodes:
      raise ValueError(
        f'sizes end with {self.sizes[-1]} and the tree has {self.tree.nodes} '
        'nodes; the last size is the whole tree.'
      )
    missing = [n for n in self.sizes if n not in self.table.sizes]
    if missing:
      raise ValueError(
        f'the latency table has no cost of {missing} rows, only of '
        f'{list(self.table.sizes)}; choose among these, or '
        + REMEDY[:-1]
        + ' --sizes=...'
      )

  @property
  def nodes(self) -> int:
    return self.tree.nodes

  @property
  def ask(self) -> Ask:
    return self.tree.ask

  def bind(self, params: Any, target: Any) -> Any:
    """Nothing is made; the table is held against the target's weights."""
    self.table.check(target.config, target.dtype)
    return params

  def grow(
    self, params, expand, root: Candidates, scratch, round: Round
  ) -> tuple[TokenTree, object]:
    """See `method.Tree`: the whole tree."""
    return self.tree.grow(params, expand, root, scratch, round)

  def choose(self, params, tree: TokenTree, round: Round) -> Array:
    """See `method.SizedTree`; rows that are done have no say."""
    del params
    length_B = round.context.length_B
    alive_B = round.alive_B
    if alive_B is None:
      alive_B = jnp.ones(length_B.shape, bool)
    chance_BN = jnp.where(tree.valid_BN, jnp.exp(tree.logq_BN), 0)
    chance_BN = jnp.where(alive_B[:, None], chance_BN, 0)
    # The root is sure, and stands for the token behind the path.
    tokens_N = jnp.sum(jnp.cumsum(chance_BN, axis=1), axis=0)
    tokens_J = tokens_N[np.asarray(self.sizes) - 1]
    longest = jnp.max(jnp.where(alive_B, length_B, 0))
    rate_J = tokens_J / self.table.costs(self.sizes, longest)
    return jnp.argmax(rate_J).astype(jnp.int32)


def target_sizes(config: Any) -> tuple[tuple[str, int], ...]:
  """(name, value) of the sizes on which a target's speed depends."""
  return tuple((name, getattr(config, name)) for name in SIZES)


def _check_rising(name: str, values: tuple[int, ...]) -> None:
  whole = all(type(n) is int and n >= 1 for n in values)
  if not values or not whole or sorted(set(values)) != list(values):
    raise ValueError(
      f'{name} are {list(values)}; give whole numbers above 0 that rise.'
    )


def _frozen(x: Any) -> Any:
  return tuple(map(_frozen, x)) if isinstance(x, list) else x
