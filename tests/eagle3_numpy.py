"""EAGLE-3's network as a plain loop over rows, in numpy."""

import numpy as np


def norm(x, scale, eps):
  return scale * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def silu(x):
  return x / (1 + np.exp(-x))


def turned(x_KH, position, theta):
  """Rotates halves, one position."""
  half = x_KH.shape[-1] // 2
  angle = position * theta ** (-np.arange(half) / half)
  a, b = x_KH[:, :half], x_KH[:, half:]
  cos, sin = np.cos(angle), np.sin(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


def attended(s, w, x, position, keys, values):
  """One row's attention; its key and value are appended to the lists."""
  c = s.config
  split = lambda m: (m @ x).reshape(-1, c.head_dim)
  q_QH, k_KH, v_KH = split(w.q_OD), split(w.k_OD), split(w.v_OD)
  if c.qk_norm:
    q_QH, k_KH = norm(q_QH, w.q_norm_H, c.eps), norm(k_KH, w.k_norm_H, c.eps)
  keys.append(turned(k_KH, position, c.rope.theta))
  values.append(v_KH)
  q_QH, group = turned(q_QH, position, c.rope.theta), c.q_heads // c.kv_heads
  out = []
  for i, q in enumerate(q_QH):
    score = np.array([k[i // group] @ q for k in keys]) / np.sqrt(c.head_dim)
    share = np.exp(score - score.max())
    share /= share.sum()
    out.append(
      sum(p * v[i // group] for p, v in zip(share, values, strict=True))
    )
  return w.o_DO @ np.concatenate(out)


def fused(s, p, feature):
  eps = s.config.eps
  if s.norm_before_fc:
    feature = norm(feature, p.input_norm_E, eps)
  if s.fc_norm:
    parts = np.split(feature, 3)
    feature = np.concatenate(
      [norm(x, w, eps) for x, w in zip(parts, p.fc_norm_AD, strict=True)]
    )
  return p.fc_DE @ feature


def laws(p, embed_VD, s, features, tokens):
  """Log-probabilities after the last feature, and after each step below.

  `tokens` are those behind the features, then the drafts: a chain.
  """
  eps, found = s.config.eps, []
  caches = [([], []) for _ in p.layers]
  hidden = None
  for t, token in enumerate(tokens):
    true = t < len(features)
    g = fused(s, p, features[t]) if true else hidden
    normed = norm(g, p.hidden_norm_D, eps)
    x = normed if s.norm_before_residual else g
    for i, w in enumerate(p.layers):
      h = norm(x, w.attn_norm_D, eps)
      if i == 0:
        e = norm(embed_VD[token], w.attn_norm_D, eps)
        h = np.concatenate([e, normed])
      x = x + attended(s, w, h, t, *caches[i])
      h = norm(x, w.mlp_norm_D, eps)
      m = w.mlp
      x = x + m.down_DF @ (silu(m.gate_FD @ h) * (m.up_FD @ h))
    out = norm(x, p.norm_D, eps)
    hidden = out if s.norm_output else x
    if t >= len(features) - 1:
      logits = p.head_VD @ out
      top = logits.max()
      found.append(logits - top - np.log(np.exp(logits - top).sum()))
  return found
