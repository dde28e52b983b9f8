"""Traces on disk: collected by whole prompts, and gone on with."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from specjax.checks import changes, check_whole
from specjax.method import Method
from specjax.training.collect import Plan, collect
from specjax.training.fingerprints import digest, texts_fingerprint
from specjax.training.traces import Rounds
from specjax.types import Params
from specjax.weights.files import write_tensors
from specjax.weights.scorer import settings

FORMAT = 'specjax-taps-traces'
HASHED = 256  # entries of a leaf that tell weights apart
FIELDS = tuple(f.name for f in dataclasses.fields(Rounds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traces:
  """Rounds of the first `prompts` prompts, in order, on the host.

  A file of them is one safetensors file: the fields of `Rounds` and `prompt`
  (int32, of each round), with the manifest as its metadata, so that the two
  never disagree.
  """

  rounds: Rounds
  prompt_B: np.ndarray  # int32, which prompt a round is of
  prompts: int
  manifest: dict[str, Any]

  def save(self, path: str | pathlib.Path) -> None:
    """Replaces the file as a whole."""
    tensors = {
      name: np.ascontiguousarray(getattr(self.rounds, name)) for name in FIELDS
    }
    manifest = self.manifest | {'prompts': self.prompts}
    metadata = {'format': FORMAT, 'manifest': json.dumps(manifest)}
    write_tensors(path, tensors | {'prompt': self.prompt_B}, metadata)


def load(path: str | pathlib.Path) -> Traces:
  """Reads a file that `Traces.save` wrote.

  Raises:
    ValueError: no such file, or something else; names it.
  """
  try:
    with safe_open(path, framework='numpy') as file:
      metadata = file.metadata() or {}
      if metadata.get('format') != FORMAT:
        raise ValueError(f'{path} holds no traces; give another path.')
      manifest = json.loads(metadata['manifest'])
      return Traces(
        rounds=Rounds(**{name: file.get_tensor(name) for name in FIELDS}),
        prompt_B=file.get_tensor('prompt'),
        prompts=manifest.pop('prompts'),
        manifest=manifest,
      )
  except (OSError, SafetensorError) as error:
    raise ValueError(
      f'traces {path} cannot be read ({error}); collect them again.'
    ) from error


def collect_to(
  path: str | pathlib.Path,
  method: Method,
  params: Params,
  prompts: Sequence[Sequence[int]],
  plan: Plan,
  *,
  every: int = 8,
  progress: Callable[[Sequence[int]], Any] = iter,
) -> Traces:
  """Collects into a file, going on where an earlier call was stopped.

  The file holds whole prompts and may be extended by more of them.

  Args:
    path: of the file; its folder exists.
    method: see `collect`, as the next three.
    params: some of each leaf is hashed, so that other weights are refused.
    prompts: ids.
    plan: how.
    every: prompts after which the file is written.
    progress: wraps the indices of the prompts that are left, like tqdm.

  Raises:
    ValueError: the file was made with other settings, weights or prompts.
  """
  check_whole(1, every=every)
  path = pathlib.Path(path)
  manifest = {
    **settings(method, params.target.config),
    **plan.lasting,
    'weights': _weights(params.replace(tree=())),
  }
  done, parts = 0, []
  if path.exists():
    traces = load(path)
    _check(path, traces, manifest, prompts)
    done, parts = traces.prompts, [(traces.rounds, traces.prompt_B)]
  found = collect(method, params, prompts, plan, first=done)
  for i in progress(range(done, len(prompts))):
    rounds = next(found)
    parts.append((rounds, np.full(len(rounds.root_B), i, np.int32)))
    if (i + 1 - done) % every == 0 or i + 1 == len(prompts):
      parts = [jax.tree.map(lambda *xs: np.concatenate(xs), *parts)]
      traces = Traces(
        rounds=parts[0][0],
        prompt_B=parts[0][1],
        prompts=i + 1,
        manifest=manifest | {'texts': _texts(prompts[: i + 1])},
      )
      traces.save(path)
  return traces


def _check(path: pathlib.Path, old: Traces, manifest: dict, prompts) -> None:
  stored = dict(old.manifest)
  texts = stored.pop('texts')
  wrong = changes(stored, manifest, lambda value, other: str(value))
  if not wrong and texts != _texts(prompts[: old.prompts]):
    wrong = [f'its {old.prompts} prompts are not the first of those given']
  if wrong:
    raise ValueError(
      f'{path} was made with other settings ({"; ".join(wrong)}); it is kept '
      'as it is, so give another path.'
    )


def _texts(prompts: Sequence[Sequence[int]]) -> str:
  return texts_fingerprint([[int(t) for t in ids] for ids in prompts])


def _weights(params: Params) -> str:
  """Of the first entries, the shape and the dtype of every leaf."""
  parts = []
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = f'{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}'
    some = np.asarray(jnp.ravel(leaf)[:HASHED])
    parts.append(name.encode() + some.tobytes())
  return digest(b''.join(parts))
