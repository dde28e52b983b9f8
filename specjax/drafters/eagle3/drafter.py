"""EAGLE-3: one layer that reads the target's features, step by step."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from specjax.candidates import top_candidates
from specjax.drafters import scratch as scratch_lib
from specjax.drafters.eagle3 import network
from specjax.drafters.eagle3 import weights as eagle3_weights
from specjax.drafters.eagle3.layout import Settings
from specjax.drafters.eagle3.names import IGNORED
from specjax.drafters.eagle3.weights import Weights
from specjax.drafters.scratch import Scratch
from specjax.models import cache as kv
from specjax.models import transformer
from specjax.models.names import Tensor
from specjax.tree_ops import causal, take_rows
from specjax.types import (
  Accepted,
  Array,
  Ask,
  Candidates,
  Frontier,
  Head,
  Round,
  struct,
)


@struct
class State:
  """Rows read with the target's features, and features not read yet.

  Row t is the feature of position t beside token t + 1. With the root at
  position n, rows 0 to n - 1 - count are in the cache; the pending features
  are those of positions n - count to n - 1, garbage behind them.
  """

  cache: kv.KVCache
  pending_BRE: Array  # R = max_depth + 1: the most that a round accepts
  count_B: Array  # int32, 1 .. R


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3:
  """Drafts from three fused layers of the target.

  Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language
  Models via Training-Time Test", arXiv:2503.01840, read with the authors' code
  (SafeAILab/EAGLE); variants of its successor 3.1 (arXiv:2605.09992) and of
  speculators are in `eagle3.layout.Settings`. A row joins a token and a hidden
  vector: for committed tokens the features of the position before, below the
  root the drafter's own output at the parent.

  Rows of accepted drafts are read again with the target's features, since what
  was made of the drafter's own costs acceptance. Features wait until the next
  round's first pass reads them all and gives the root's candidates, so that a
  round of depth D costs D passes, and reading a prompt is the same scheme.

  The rotary position of a row is that of its feature.
  """

  settings: Settings
  depth: int  # levels of the deepest tree it is asked for
  shared_rows: bool = False
  ignore: tuple[str, ...] = IGNORED  # tensors that are no parameters

  @property
  def taps(self) -> tuple[int, ...]:
    return transformer.layer_inputs(self.settings.inputs)

  @property
  def max_depth(self) -> int:
    return self.depth

  def init(self, key, target_config) -> Weights:
    del target_config  # `eagle3.layout.from_hf` compared it
    return eagle3_weights.init(self.settings, key)

  def tensors(self) -> list[Tensor]:
    return eagle3_weights.tensors(self.settings)

  def bind(self, params: Weights, target) -> Weights:
    """See `eagle3.weights.bind`; every other call wants what it returns."""
    del target  # its sizes were compared, what is borrowed is read there
    return eagle3_weights.bind(self.settings, params)

  def unbind(self, params: Weights) -> Weights:
    """What `bind` made, trained or not, as a checkpoint holds it."""
    return eagle3_weights.unbind(self.settings, params)

  def head(self, params: Weights, target) -> Head:
    """The drafted tokens' rows, with the target's ids."""
    if params.d2t_V is not None:
      raise ValueError(
        'these parameters are as a checkpoint holds them; pass what '
        '`method.bind` makes of them, or offsets would be taken for ids.'
      )
    own = params.head_VD
    return Head(target.head if own is None else own, params.id_V)

  def start(self, params, target, batch: int, capacity: int) -> State:
    dtype = params.fc_DE.dtype
    shape = (batch, self.depth + 1, params.fc_DE.shape[1])
    return State(
      cache=kv.empty(self.settings.config, batch, capacity, dtype),
      pending_BRE=jnp.zeros(shape, dtype),
      count_B=jnp.ones((batch,), jnp.int32),
    )

  def begin(
    self, params: Weights, target, state: State, round: Round, ask: Ask
  ) -> tuple[Candidates, Scratch]:
    if ask.depth > self.depth:
      raise ValueError(
        f'the drafter was built for trees of depth {self.depth}, this one has '
        f'{ask.depth}; build both for the same.'
      )
    rows = ask.depth + 1  # no round of such trees leaves more pending
    root_B = round.context.length_B - 1
    start_B = jnp.maximum(root_B - state.count_B, 0)  # below 0 once a row ended
    position_BR = start_B[:, None] + jnp.arange(rows)
    token_BT = round.context.tokens_BT
    next_BR = jnp.minimum(position_BR + 1, token_BT.shape[1] - 1)
    read = network.read(
      self.settings,
      params,
      target,
      network.fuse(self.settings, params, state.pending_BRE[:, :rows]),
      jnp.take_along_axis(token_BT, next_BR, axis=1),
      position_BR,
      state.cache,
      start_B,
      causal(*position_BR.shape),
    )
    last = lambda x_BTD: take_rows(x_BTD, state.count_B - 1)[:, None]
    b, c = len(root_B), self.settings.config
    scratch = scratch_lib.opened(
      round,
      kv.write(state.cache, read.rows, start_B),  # the root's row is in it
      kv.empty(c, b, 1, state.cache.k_LBKSH.dtype),
      last(read.hidden_BTD),
      ask,
    )
    return self._candidates(
      params, target, last(read.normed_BTD), scratch, 0
    ), scratch

  def expand(
    self, params: Weights, target, scratch: Scratch, frontier: Frontier
  ) -> tuple[Candidates, Scratch]:
    place = scratch_lib.place(scratch, frontier)
    root_B = scratch.round.context.length_B - 1
    read = network.read(
      self.settings,
      params,
      target,
      take_rows(scratch.own, place.parent_BW),
      frontier.token_BW,
      place.position_BW - 1,  # of the feature, not of the token
      scratch.cache,
      root_B,
      place.mask_BWM,
      earlier=scratch.rows,
    )
    scratch = scratch_lib.fed(
      scratch, frontier, place, read.rows, read.hidden_BTD
    )
    return self._candidates(
      params, target, read.normed_BTD, scratch, frontier.depth
    ), scratch

  def commit(
    self,
    params: Weights,
    target,
    state: State,
    scratch: Scratch | None,
    accepted: Accepted,
  ) -> State:
    if scratch is None:
      return self._read_prompt(params, target, state, accepted)
    return State(
      cache=scratch.cache,
      pending_BRE=self._pending(state, accepted.taps_BPE),
      count_B=accepted.length_B,
    )

  def _read_prompt(self, params, target, state: State, accepted) -> State:
    """One chunk: its last feature waits for the token behind it.

    Position -1 has no row, so a chunk that starts at 0 has one row less than
    others; what then fills the last row is overwritten by the next pass.
    """
    token_BP, start_B = accepted.token_BP, accepted.start_B
    taps_BPE = accepted.taps_BPE.astype(state.pending_BRE.dtype)
    first_B1 = (start_B == 0)[:, None]
    behind_BPE = jnp.concatenate(
      [state.pending_BRE[:, :1], taps_BPE[:, :-1]], axis=1
    )
    at_B = jnp.maximum(start_B - 1, 0)
    read = network.read(
      self.settings,
      params,
      target,
      network.fuse(
        self.settings,
        params,
        jnp.where(first_B1[..., None], taps_BPE, behind_BPE),
      ),
      jnp.where(first_B1, jnp.roll(token_BP, -1, axis=1), token_BP),
      at_B[:, None] + jnp.arange(token_BP.shape[1]),
      state.cache,
      at_B,
      causal(*token_BP.shape),
    )
    # A prompt that ended before this chunk writes behind its rows.
    last_B1E = take_rows(taps_BPE, jnp.maximum(accepted.length_B - 1, 0))[
      :, None
    ]
    some_B11 = (accepted.length_B > 0)[:, None, None]
    pending_BRE = self._pending(state, last_B1E)
    return State(
      cache=kv.write(state.cache, read.rows, at_B),
      pending_BRE=jnp.where(some_B11, pending_BRE, state.pending_BRE),
      count_B=jnp.ones_like(state.count_B),
    )

  def _pending(self, state: State, taps_BPE: Array) -> Array:
    """Features padded to the rows of the state."""
    rows = state.pending_BRE.shape[1]
    taps_BPE = taps_BPE[:, :rows].astype(state.pending_BRE.dtype)
    missing = rows - taps_BPE.shape[1]
    return jnp.pad(taps_BPE, ((0, 0), (0, missing), (0, 0)))

  def _candidates(
    self, params, target, normed_BWD: Array, scratch: Scratch, depth: int
  ) -> Candidates:
    return top_candidates(
      normed_BWD,
      self.head(params, target),
      scratch.round,
      scratch.ask.fanout,
      depth,
      features=scratch.ask.features,
    )
