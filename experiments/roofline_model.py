"""What a step and a round must cost at least: a prediction, no measurement.

A pass of a decoder over T rows of each of B sequences, S tokens in the cache:

  read    = 2 bytes x (weights of all layers, each once, and of the head)
            + B S k  from the cache, k = layers x 2 x kv heads x head dim x 2
  written = B T k
  flops   = 2 B T x (weights a row meets) + 4 B T (S + T) x layers x q width
  seconds = max((read + written) / bandwidth, flops / peak)
            + launches x seconds of a launch

Of E experts a row meets e. If rows choose evenly and apart, B T rows meet

  E (1 - (1 - e / E)^(B T))

different ones, and those are read. Layers are projections: norms, rotations and
embedding rows are under a tenth of a percent. Activations and logits are taken
to stay on the chip. A head of V rows of width D over R rows reads 2 V D bytes
and costs 2 R V D flops; a drafter's may be trimmed.

  plain step = a pass of the target over one row, with its head
  round      = the drafter's passes + the target's over `nodes` rows
               + a fixed time for tree, walk and cache writes
  speed-up   = tokens per round x plain step / round

This is the roofline of Williams, Waterman and Patterson (Communications of the
ACM 52(4), 2009) and a constant per launch. Real kernels reach neither roof.
"""

from __future__ import annotations

import dataclasses

from specjax.models.config import ModelConfig

BYTES = 2  # of a bfloat16
LAYER_LAUNCHES = 10  # OUR CHOICE: norms, projections, attention, MLP, fused
HEAD_LAUNCHES = 3  # OUR CHOICE: norm, projection, choice of tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
  """Data-sheet figures of an accelerator and the cost of a launch on it."""

  gb_s: float  # memory bandwidth, 1e9 bytes a second
  tflop_s: float  # dense bfloat16, 1e12 a second
  launch_us: float = 2.0  # OUR CHOICE: a kernel inside one compiled program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
  """Of one pass, or of a part of it: parts add up before the maximum."""

  bytes: float = 0.0
  flops: float = 0.0
  launches: float = 0.0

  def __add__(self, other: Cost) -> Cost:
    return Cost(
      bytes=self.bytes + other.bytes,
      flops=self.flops + other.flops,
      launches=self.launches + other.launches,
    )

  def ms(self, device: Device) -> float:
    memory = self.bytes / (device.gb_s * 1e9)
    compute = self.flops / (device.tflop_s * 1e12)
    launching = self.launches * device.launch_us * 1e-6
    return 1e3 * (max(memory, compute) + launching)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """What is decoded and how far a round gets."""

  nodes: int = 1  # rows verified, root included
  accepted: float = 1.0  # mean tokens emitted by a round, bonus included
  batch: int = 1
  context: int = 512  # tokens in the cache
  draft_vocab: int | None = None  # rows of the drafter's head; None: its own
  bookkeeping_us: float = 50.0  # OUR CHOICE: per round, beside the passes


def experts_read(experts: int, per_token: int, rows: float) -> float:
  """Different experts that so many rows are expected to choose."""
  return experts * (1 - (1 - per_token / experts) ** rows)


def projection(size: float, rows: float) -> Cost:
  """A matrix of `size` weights, read once, on all `rows`."""
  return Cost(bytes=BYTES * size, flops=2.0 * size * rows)


def head(width: int, vocab: int, rows: float) -> Cost:
  return projection(width * vocab, rows) + Cost(launches=HEAD_LAUNCHES)


def layers(
  net: ModelConfig,
  at: Setting,
  rows: float,
  *,
  fused: float = 0.0,
  inputs: int = 1,
) -> Cost:
  """All layers on `rows` rows per sequence.

  Args:
    net: sizes.
    at: batch and context.
    rows: per sequence.
    fused: rows more that only become keys and values.
    inputs: of width `net.width` that queries, keys and values read.
  """
  all_rows = at.batch * rows
  q_width = net.q_heads * net.head_dim
  kv_width = 2 * net.kv_heads * net.head_dim
  attention = projection(
    net.width * (inputs * (q_width + kv_width) + q_width), all_rows
  )
  into_cache = Cost(
    bytes=BYTES * kv_width * at.batch * (at.context + rows + fused),
    flops=2.0 * net.width * kv_width * at.batch * fused
    + 4.0 * all_rows * (at.context + rows + fused) * q_width,
    launches=LAYER_LAUNCHES,
  )
  dense = projection(3 * net.width * net.mlp, all_rows)
  sparse = len(net.sparse_layers)
  parts = [attention + into_cache] * net.layers
  parts += [dense] * (net.layers - sparse)
  if sparse:
    parts += [_mixture(net, all_rows)] * sparse
  return sum(parts, Cost())


def _mixture(net: ModelConfig, rows: float) -> Cost:
  expert = 3 * net.width * net.expert_mlp
  read = experts_read(net.experts, net.experts_per_token, rows)
  return projection(net.width * net.experts, rows) + Cost(
    bytes=BYTES * expert * read,
    flops=2.0 * expert * net.experts_per_token * rows,
  )


def target_pass(target: ModelConfig, at: Setting, rows: int) -> Cost:
  """Layers and head of the target on `rows` rows of every sequence."""
  return layers(target, at, rows) + head(
    target.width, target.vocab, at.batch * rows
  )
