"""A random order of n things without a table of n entries: where the i-th one is, is computed from i alone.

A Feistel network turns any function of half the bits into a one-to-one map of all of them: (l, r) -> (r, l ^ f(r)).
Its domain is a power of four; a value that falls outside of [0, n) is sent through again until it falls inside
(cycle walking), which leaves a permutation of [0, n). Only integers are used, so that the order is the same on every
machine and under every version of NumPy, as resuming a run asks for.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

ROUNDS = 6
STRIDE = 0xD1B54A32D192ED03  # between the keys of two rounds

Words = npt.NDArray[np.uint64]


def draw(seed: int, epoch: int, purpose: str) -> int:
    """64 random bits that depend on all three and on nothing else."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def numbers(count: int, key: int) -> Words:
    """(count,) random 64-bit numbers, each of which depends on the key and its place alone."""
    return _mix(np.arange(count, dtype=np.uint64), key)


def permute(indices: npt.ArrayLike, size: int, key: int) -> npt.NDArray[np.int64]:
    """Where the permutation chosen by `key`, 64 bits, sends each index in [0, size)."""
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))  # bits in each half
    values = np.array(indices, dtype=np.uint64)
    outside = np.ones(values.shape, dtype=np.bool_)
    while outside.any():
        values[outside] = _feistel(values[outside], half, key)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: Words, half: np.uint64, key: int) -> Words:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (_mix(right, key + number * STRIDE) & mask)
    return (left << half) | right


def _mix(values: Words, key: int) -> Words:
    """SplitMix64: every bit of the result depends on every bit of the value and of the key."""
    mixed = (values + np.uint64(key % 2**64)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
