"""EvoSpec's vocabulary: frequent tokens, and rare ones that the text needs."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax.numpy as jnp

from specjax.checks import whole
from specjax.drafters.evolving_vocab import Evolving, EvolvingVocab
from specjax.drafters.vocab_buffer import Index, Rule
from specjax.method import Method
from specjax.models.config import ModelConfig
from specjax.types import Params
from specjax.vocab.fr_spec import FrSpec, check_drafter, head_of
from specjax.vocab.indices import Indices, load_indices
from specjax.vocab.ranks import chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvoSpec:
  """A static list and a dynamic buffer, for `specjax.load(vocab=...)`.

  Zhang et al., arXiv:2605.27390, as we reconstruct it: see
  `drafters.evolving_vocab`. The head must have a row for every token: a draft
  model's own, or the target's. A public EAGLE-3 head has rows for its trained
  tokens only and nothing to take others from.

  Args:
    ranks: as for `FrSpec`.
    size: as for `FrSpec`.
    buffer: rare tokens per sequence, 256 to 1024 in the paper; 0 is FR-Spec.
    indices: `Indices` or their file; without them the buffer learns from the
      text and the target's logits alone.
    sources: which of `vocab_buffer.Rule`'s sources count; None takes those of
      a `rule` that names others than abc, else all that there is an index for.
    rule: the settings of the buffer.
  """

  ranks: Any
  size: int | None = None
  buffer: int = 512
  indices: Any = None
  sources: str | None = None
  rule: Rule = dataclasses.field(default_factory=Rule)

  def check(self, method: Method, target_config: ModelConfig) -> None:
    """See `method.Vocabulary`; a pruned head is known by its weights only."""
    self._read(method, target_config.vocab)

  def wrap(self, method: Method, params: Params) -> tuple[Method, Params]:
    """See `method.Vocabulary`.

    Raises:
      ValueError: a drafter without a whole head, a buffer that there are too
        few tokens for, a source without its index, an index of another
        vocabulary, or see `ranks.chosen`.
    """
    vocab = params.target.config.vocab
    id_V, rule, (semantic, statistical) = self._read(method, vocab)
    if self.buffer == 0:
      return FrSpec(ranks=id_V).wrap(method, params)
    head = head_of(method, params)
    rows = head.rows_VD.shape[0]
    if head.id_V is not None or rows != vocab:
      raise ValueError(
        f'the drafter of method {method.name!r} has a pruned head ({rows} rows '
        f'for {vocab} tokens), and a rare token needs a row to enter the '
        'buffer. Take a drafter with a whole head, or FrSpec.'
      )
    drafter = EvolvingVocab(inner=method.drafter, buffer=self.buffer, rule=rule)
    evolving = Evolving(
      inner=params.drafter,
      rows_VD=jnp.take(head.rows_VD, jnp.asarray(id_V), axis=0),
      id_V=jnp.asarray(id_V),
      semantic=semantic if 'd' in rule.sources else None,
      statistical=statistical if 'e' in rule.sources else None,
    )
    return dataclasses.replace(method, drafter=drafter), params.replace(
      drafter=evolving
    )

  def _read(self, method: Method, vocab: int):
    """(ids, rule, indices), checked; files are read here alone."""
    check_drafter(method)
    id_V = chosen(self.ranks, self.size, vocab)
    room = vocab - len(id_V)
    if not whole(self.buffer) or not 0 <= self.buffer <= room:
      raise ValueError(
        f'buffer is {self.buffer!r}; beside a list of {len(id_V)} the target '
        f'has {room} tokens, so give 0 (none) to that many.'
      )
    indices = self._indices(vocab)
    return id_V, self._rule(*indices), indices

  def _indices(self, vocab: int) -> tuple[Index | None, Index | None]:
    """Both as arrays, checked."""
    indices = self.indices
    if indices is None:
      return None, None
    if isinstance(indices, (str, os.PathLike)):
      indices = load_indices(indices)
    if not isinstance(indices, Indices):
      raise ValueError(
        f'indices are a {type(indices).__name__}; give '
        'specjax.vocab.indices.Indices, their file, or None.'
      )
    for name in ('semantic', 'statistical'):
      index = getattr(indices, name)
      if index is not None and index.id_VC.shape[0] != vocab:
        raise ValueError(
          f'the {name} index knows {index.id_VC.shape[0]} tokens and the '
          f"target {vocab}; build it from this target's head and tokenizer."
        )
    return indices.semantic, indices.statistical

  def _rule(self, semantic, statistical) -> Rule:
    if not isinstance(self.rule, Rule):
      raise ValueError(
        f'rule is {self.rule!r}; give a specjax.drafters.vocab_buffer.Rule.'
      )
    have = {'d': semantic is not None, 'e': statistical is not None}
    sources = self.sources
    if sources is None:
      sources = self.rule.sources
      if sources == Rule().sources:  # not chosen
        sources += ''.join(s for s, there in have.items() if there)
    rule = dataclasses.replace(self.rule, sources=sources)
    for source in sources:
      if not have.get(source, True):
        raise ValueError(
          f'source {source!r} needs an index that is not there; build one with '
          'specjax.vocab.indices, or leave it out of sources.'
        )
    return rule
