"""Bounds of settings that have the same meaning everywhere."""

from __future__ import annotations

LARGEST_SEED = (1 << 63) - 1  # torch and NumPy take 64 bits
MOST_THREADS = 1024  # OpenMP ends the process at some number above
