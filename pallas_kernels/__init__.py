"""Kernels behind plain functions: one folder per op, each with a reference."""
