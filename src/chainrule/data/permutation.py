"""Random permutations of n elements without a table of n entries: the image of i is computed from i alone.

A Feistel network turns any function of half the bits into a bijection of all bits: (l, r) -> (r, l ^ f(r)). Its domain
is a power of four; a value outside of [0, n) is mapped again until it is inside (cycle walking), which results in a
permutation of [0, n). All arithmetic is on integers, so that the order is the same on every machine and with every
version of NumPy, as exact resuming requires.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

ROUNDS = 6
STRIDE = 0xD1B54A32D192ED03  # between the keys of two rounds

Words = npt.NDArray[np.uint64]


def draw(seed: int, epoch: int, purpose: str) -> int:
    """Return 64 random bits that depend only on the arguments."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def numbers(count: int, key: int) -> Words:
    """Return (count,) random 64-bit numbers, each a function of the key and its index."""
    return _mix(np.arange(count, dtype=np.uint64), key)


def permute(indices: npt.ArrayLike, size: int, key: int) -> npt.NDArray[np.int64]:
    """Apply the permutation selected by `key` (64 bits) to indices in [0, size)."""
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
