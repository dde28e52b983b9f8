"""Speculative decoding in JAX: published methods in one compiled loop."""
