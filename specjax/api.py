"""`load`: from folders to a decoder; what a notebook types first."""

from __future__ import annotations

import functools
import importlib
import inspect
import pathlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from specjax import compile_cache, methods, packaged, sharding, text
from specjax.checks import check_whole, whole
from specjax.decoder import Decoder
from specjax.method import LearnedTree, Method, Vocabulary, bind
from specjax.models.config import ModelConfig, from_hf
from specjax.models.transformer import check_taps, scans
from specjax.packaged import PRETRAINED, RANKS
from specjax.types import Params
from specjax.vocab.fr_spec import FrSpec
from specjax.weights.files import read_settings
from specjax.weights.parts import load_drafter, load_part
from specjax.weights.safetensors import load_target, stored_shapes
from specjax.weights.scorer import check_scorer

DTYPES = ('auto', 'float32', 'bfloat16')


def load(
  target: str | pathlib.Path = 'default',
  method: str | Method | Callable[..., Method] = 'ar',
  drafter: Any = None,
  *,
  nodes: int | None = None,
  vocab: Vocabulary | str | None = None,
  scorer: str | pathlib.Path | None = None,
  dtype: str = 'auto',
  stacked: bool | None = None,
  slots: int = 8,
  mesh: jax.sharding.Mesh | None = None,
  **options: Any,
) -> Decoder:
  """Loads a target and a method.

  Args:
    target: a Hugging Face folder, a hub id, or 'default' (the packaged model).
    method: a module of `specjax.methods` by name, a `Method` object, or a
      module's `build` function with its options bound.
    drafter: the drafter's folder or hub id, or the name of a packaged one of
      this target, of which None takes the method's. With a `Method` object
      also its parameters themselves.
    nodes: rows the target verifies per round, root included; None is the
      method's own default. A published budget that leaves the root out (DDTree)
      is one less.
    vocab: limits what the drafter may propose, see `specjax.vocab`. None is
      what it was trained on, where its folder says so (`ranks.safetensors`),
      else the whole vocabulary, which `'full'` takes in any case.
    scorer: the folder of a learned tree's weights (TAPS); None takes the
      packaged one with the packaged drafter.
    dtype: of weights and compute; 'auto' follows the checkpoint on GPU and TPU
      and is float32 on CPU, which has no fast bfloat16.
    stacked: scan over layers (None: not on CPU, where slicing a layer out of a
      stack copies it).
    slots: rows that `Decoder.serve` decodes together.
    mesh: several devices, from `sharding.make_mesh`; None is one.
    **options: the method's own settings, see its `build`.

  Raises:
    ValueError: names what does not exist or does not fit, and what does.
  """
  compile_cache.enable()
  if dtype not in DTYPES:
    raise ValueError(f'dtype is {dtype!r}; choose one of {", ".join(DTYPES)}.')
  check_whole(1, slots=slots)
  sharding.check_mesh(mesh)
  mesh = None if mesh is None or mesh.size == 1 else mesh
  bound = _bound(method, nodes, options)
  folder = PRETRAINED / 'target' if target == 'default' else _folder(target)
  config = _settings(folder, from_hf, (TypeError, ValueError))
  tokenizer = text.load_tokenizer(folder)
  family = packaged.family(target, config, tokenizer)
  from_files = not isinstance(bound, Method) or isinstance(
    drafter, (str, pathlib.Path)
  )
  if isinstance(bound, Method):
    drafter_folder = _folder(drafter) if from_files else None
  else:
    name, build = bound
    drafter_folder = _drafter_folder(family, name, build, drafter)
    if drafter_folder is None:
      bound = build(config, None)
    else:
      shapes = stored_shapes(drafter_folder)
      read = lambda settings: build(config, {**settings, 'tensors': shapes})
      bound = _settings(drafter_folder, read, (TypeError,))
  check_taps(bound.drafter.taps, config.layers)
  vocab = _vocab(vocab, drafter_folder)
  _check_vocab(vocab, bound, config)
  _check_nodes(bound, config)

  on_cpu = jax.default_backend() == 'cpu'
  kind = _dtype(dtype, config, on_cpu)
  if drafter_folder is not None:
    drafter_params = load_drafter(
      bound.drafter, drafter_folder, config, kind, mesh=mesh
    )
  else:
    drafter_params = () if drafter is None else drafter
  own = packaged.drafter(family, bound.name)
  if scorer is None and own is not None and drafter_folder == own:
    scorer = packaged.scorer(family, bound.name)
  tree_params = _load_tree(bound, scorer, config, mesh)
  stacked = scans(stacked)
  weights = load_target(folder, dtype=kind, stacked=stacked, mesh=mesh)
  params = Params(target=weights, drafter=drafter_params, tree=tree_params)
  params = bind(bound, params, drafter=from_files)
  if vocab is not None:
    bound, params = vocab.wrap(bound, params)
  if mesh is not None:  # what was given, or made since files were read
    width = sharding.head_dim(bound.drafter, params.drafter, weights)
    made = sharding.placed((params.drafter, params.tree), mesh, width)
    params = params.replace(drafter=made[0], tree=made[1])
  return Decoder(
    method=bound,
    params=params,
    tokenizer=tokenizer,
    slots=slots,
    mesh=mesh,
  )


def _settings(folder: pathlib.Path, read: Callable[[Any], Any], kinds) -> Any:
  """What `read` makes of a folder's config.json.

  Errors of these kinds come from the file, and then name it.
  """
  path = folder / 'config.json'
  settings = read_settings(path)
  try:
    return read(settings)
  except kinds as error:
    raise ValueError(f'{path}: {error}') from error


def _bound(method, nodes: int | None, options: dict[str, Any]):
  """A `Method`, or the name and the build function with its options bound."""
  if nodes is not None and not whole(nodes):
    raise ValueError(f'nodes is {nodes!r}; give a whole number.')
  if nodes is not None:
    options = options | {'nodes': int(nodes)}
  if isinstance(method, Method):
    if options:
      raise ValueError(
        f'{", ".join(options)} cannot change a Method object; build it with '
        'them.'
      )
    return method
  if callable(method):
    name, build = name_of(method), method
  else:
    name, build = method, build_of(method)
  _check_options(name, build, options)
  return name, functools.partial(build, **options)


def method_names() -> list[str]:
  """Every method there is: the modules of `specjax.methods`."""
  return sorted(m.name for m in pkgutil.iter_modules(methods.__path__))


def name_of(build: Callable[..., Method]) -> str:
  """The module of a build function, options bound or not."""
  while isinstance(build, functools.partial):
    build = build.func
  return build.__module__.rpartition('.')[2]


def build_of(name: str):
  if name not in method_names():
    raise ValueError(
      f'method {name!r} does not exist; choose one of '
      f'{", ".join(method_names())}, or pass a Method object.'
    )
  return importlib.import_module(f'specjax.methods.{name}').build


def _check_options(name: str, build: Any, options: Mapping[str, Any]) -> None:
  known = [
    p.name
    for p in inspect.signature(build).parameters.values()
    if p.kind is p.KEYWORD_ONLY
  ]
  for option in options:
    if option not in known:
      has = f'it has {", ".join(known)}' if known else 'it has none'
      raise ValueError(f'method {name!r} has no option {option!r}; {has}.')


def _check_nodes(method: Method, config: ModelConfig) -> None:
  """Masks are nodes x nodes: what no context holds would fill the memory."""
  if method.tree.nodes > config.max_length:
    raise ValueError(
      f'nodes is {method.tree.nodes}; a round verifies at most as many rows as '
      f"the target's context holds, {config.max_length}."
    )


def _folder(name: str | pathlib.Path) -> pathlib.Path:
  """A local folder, or a snapshot from the hub."""
  if not isinstance(name, (str, pathlib.Path)):
    raise ValueError(f'{name!r} is no path; give a folder or a hub id.')
  path = pathlib.Path(name).expanduser()
  if path.is_dir():
    return path
  if path.exists():
    raise ValueError(f'{name} is a file; give the folder that holds it.')
  if str(name).count('/') != 1 or str(name).startswith(('.', '/', '~')):
    raise ValueError(f'folder {name} does not exist.')
  from huggingface_hub import snapshot_download  # only where it is needed

  wanted = ['*.json', '*.safetensors', '*.jinja']
  try:
    return pathlib.Path(snapshot_download(str(name), allow_patterns=wanted))
  except Exception as error:
    raise ValueError(
      f'{name} is no local folder, and the hub did not give it '
      f'({type(error).__name__}); download it and pass its path.'
    ) from error


def _drafter_folder(family, method, build, drafter) -> pathlib.Path | None:
  """Where a named method finds its drafter; None where it needs none."""
  needs = inspect.signature(build).parameters['drafter_config']
  if needs.default is not inspect.Parameter.empty:  # `drafter_config=None`
    if drafter is not None:
      raise ValueError(f'method {method!r} takes no drafter; leave it out.')
    return None
  if drafter is not None:
    names = packaged.drafters(family)
    return family / drafter if drafter in names else _folder(drafter)
  found = packaged.drafter(family, method)
  if found is not None:
    return found
  raise ValueError(
    f'method {method!r} needs a drafter and none is packaged for this target; '
    'pass drafter=FOLDER.'
  )


def _vocab(vocab: Any, drafter: pathlib.Path | None) -> Any:
  """The vocabulary that is meant, None for all of it."""
  if vocab is None and drafter is not None and (drafter / RANKS).exists():
    return FrSpec(ranks=drafter / RANKS)
  return None if isinstance(vocab, str) and vocab == 'full' else vocab


def _check_vocab(vocab: Any, method: Method, config: ModelConfig) -> None:
  """Before weights are read."""
  if vocab is None:
    return
  # A class has the methods too, and lacks the settings.
  if isinstance(vocab, type) or not isinstance(vocab, Vocabulary):
    raise ValueError(
      f'vocab is {vocab!r}; give a vocabulary with its settings, such as '
      "specjax.vocab.fr_spec.FrSpec(ranks=FILE), 'full' or None."
    )
  vocab.check(method, config)


def _dtype(name: str, config: ModelConfig, on_cpu: bool):
  if name == 'auto':
    name = 'float32' if on_cpu else config.dtype
  return jnp.dtype(name)


def _load_tree(method: Method, scorer, config: ModelConfig, mesh) -> Any:
  """A learned tree's tensors, in float32; nothing for other trees."""
  if not isinstance(method.tree, LearnedTree):
    if scorer is not None:
      raise ValueError(
        f'the tree of method {method.name!r} learns nothing; leave scorer out.'
      )
    return ()
  if scorer is None:
    raise ValueError(
      f'method {method.name!r} needs a trained scorer and none is packaged for '
      'this target and drafter; train one on their traces and pass '
      'scorer=FOLDER.'
    )
  folder = _folder(scorer)
  check_scorer(folder, method, config)
  return load_part(method.tree, folder, config, jnp.float32, mesh=mesh)
