"""Structs that pass between drafter, tree, verifier and loop.

Letters that end an array's name are its axes, the same everywhere:

  B  rows of the batch (sequences)      N  nodes of a draft tree, root first
  T  tokens of a sequence or of a chunk W  nodes being continued now
  S  slots of a KV cache                C  candidates per node
  L  layers                             P  rows of a path: tree depth + 1
  D  width of the residual stream       E  tapped width (taps x D)
  F  width of the gated mlp             R  rounds
  Q  query heads                        M  plain candidates (TreeFlash)
  K  key/value heads                    X  experts
  G  query heads per key/value head     I  ids in a list (stop ids)
  H  width of a head                    V  vocabulary

A struct holds arrays only; what must be static for jit is a field marked so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax

Array = jax.Array
struct = flax.struct.dataclass


def static(**kwargs: Any) -> Any:
  """A struct field that is part of the program and not of the data."""
  return flax.struct.field(pytree_node=False, **kwargs)


@struct
class Context:
  """Everything committed so far; the last token has no KV row yet."""

  tokens_BT: Array  # int32, garbage from length on
  length_B: Array  # int32


@struct
class Sampling:
  """How each row picks tokens; rows differ, so these are arrays.

  Only two facts are static, since they remove work from the program: whether
  every row is greedy, and whether any row cuts its distribution.
  """

  temperature_B: Array  # float32; 0 is greedy
  top_k_B: Array  # int32; 0 is off
  top_p_B: Array  # float32; 1 is off
  min_p_B: Array  # float32; 0 is off
  all_greedy: bool = static(default=False)
  filtering: bool = static(default=True)


@struct
class Round:
  """What one round may know before the target has seen its tree.

  Row d of the noise belongs to position root + 1 + d: the children of a node
  at depth d are drawn with row d. None where every row is greedy.
  `sharpness_P` is set only where drafts are coupled to that noise, see
  `candidates.top_candidates`. `head` is set by a wrapper that limits what its
  drafter may propose.
  """

  context: Context
  key_B: Array  # one PRNG key per row, the same for its whole life
  noise_BPV: Array | None  # float32
  sampling: Sampling
  sharpness_P: Array | None = None  # float32
  alive_B: Array | None = None  # bool, rows that are not done; None is all
  head: Head | None = None


@struct
class Head:
  """Output rows of a drafter, and which token each of them proposes.

  Here V counts rows, which may be fewer than the target's tokens. Sequences may
  have rows of their own behind the common ones; an id of -1 is an empty row.
  """

  rows_VD: Array
  id_V: Array | None = None  # int32, all different; None: row v is token v
  own_BVD: Array | None = None
  own_id_BV: Array | None = None  # int32, none of them in id_V

  @property
  def size(self) -> int:
    own = 0 if self.own_id_BV is None else self.own_id_BV.shape[1]
    return self.rows_VD.shape[0] + own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ask:
  """What a tree will request, known before tracing.

  `fanout=None` asks for the whole vocabulary, warped as the row samples: the
  exact law from which a sampled chain is drawn. `features` asks for what a
  learned tree reads beside the scores.
  """

  depth: int
  width: int = 1
  fanout: int | None = 1
  features: bool = False


@struct
class Frontier:
  """Nodes to be continued now; all of one depth."""

  token_BW: Array  # int32
  row_BW: Array  # int32, row of the previous call that proposed the token
  depth: int = static(default=1)


@struct
class Candidates:
  """A sparse next-token distribution per row, best first.

  For sampled chains C = V and `logq` is exactly the law drawn from; otherwise
  `logq` is a score, -inf for "not a candidate".
  """

  token_BWC: Array  # int32
  logq_BWC: Array  # float32
  features: Features | None = None  # where the tree asked for them


@struct
class Features:
  """What a learned tree reads beside the scores; plain, never coupled."""

  hidden_BWD: Array  # what the head reads
  entropy_BW: Array  # float32, nats, of the whole law at temperature 1
  logq_BWC: Array  # float32, log-probabilities at temperature 1


@struct
class TokenTree:
  """A padded draft tree in topological order.

  Node 0 is the last committed token and its own parent; a parent stands before
  its children; siblings hold different tokens; `logq` sums up from the root.
  """

  token_BN: Array  # int32
  parent_BN: Array  # int32
  depth_BN: Array  # int32
  valid_BN: Array  # bool
  logq_BN: Array  # float32
  draft: Candidates | None = None  # row d: the law depth d + 1 was drawn from
  max_depth: int = static(default=0)
  is_chain: bool = static(default=False)  # one child per node, in order

  @property
  def path_rows(self) -> int:
    return self.max_depth + 1


@struct
class Verdict:
  """The accepted path, root first and -1 padded, and one token more.

  `length_B` counts the root: it equals the tokens emitted before a stop id or
  the length cap cuts them, and the papers' acceptance length of the round.
  """

  path_BP: Array  # int32 node indices
  length_B: Array  # int32, 1 .. P
  bonus_B: Array  # int32


@struct
class Accepted:
  """What a drafter may learn from a round, or from a chunk of the prompt.

  Row p is at position start + p; the first `length_B` rows are valid. The bonus
  token is not among them (its KV does not exist yet).
  """

  token_BP: Array  # int32
  start_B: Array  # int32
  length_B: Array  # int32
  taps_BPE: Array
  bonus_B: Array | None = None  # None while the prompt is read
  logits_BPV: Array | None = None  # float32, the target's; None likewise


@struct
class Params:
  """Arrays of a method: the target, its drafter, and a tree that learns."""

  target: Any
  drafter: Any = ()
  tree: Any = ()


@struct
class DecodeState:
  """All that a decode loop carries; fixed shapes, one row per sequence."""

  context: Context
  cache: Any  # the target's KVCache
  draft: Any  # the drafter's own state
  key_B: Array
  sampling: Sampling
  stop_BI: Array  # int32, -1 padded
  limit_B: Array  # int32, tokens of prompt and answer together
  done_B: Array  # bool
  stopped_B: Array  # bool: ended by a stop id and not by the cap
  rounds_B: Array  # int32, rounds in which the row was alive
  walk_BR: Array  # int32, verdict length per round, 0 padded
  logprob_BT: Array | None = None  # float32, where asked for


@struct
class Records:
  """What `observe` returned, one entry per executed round."""

  count: Array  # int32, rounds written
  values: Any  # the observer's struct, with a leading axis R
