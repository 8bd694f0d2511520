"""Gumbel noise that can be computed token by token from the key of a position (see `decoding.noise`), compiled."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.kernels.caching import compiled, exported

BLOCK = 128  # tokens
KEY_BITS = 53
BLOCKS, OWNERS, TOKENS = np.uint64(1), np.uint64(2), np.uint64(3)
"""Which random numbers: those of the least values of blocks, of the tokens that have them, and of the other values."""

Doubles = npt.NDArray[np.float64]


@compiled
def random_word(seed: Any, index: int) -> Any:
    """A number of SplitMix64."""
    word = seed + np.uint64(index + 1) * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@compiled
def seed_of(key: float, purpose: Any) -> Any:
    return (np.uint64(key) << np.uint64(64 - KEY_BITS)) ^ purpose


@compiled
def uniform(seed: Any, index: int) -> float:
    """Between 0 and 1, which it never is."""
    return (np.float64(random_word(seed, index) >> np.uint64(11)) + 0.5) * 2.0**-53


@compiled
def block_size(block: int, vocabulary: int) -> int:
    return min(BLOCK, vocabulary - block * BLOCK)


@compiled
def least_of(key: float, block: int, vocabulary: int) -> float:
    """The least exponential variable of a block."""
    return -math.log(uniform(seed_of(key, BLOCKS), block)) / block_size(block, vocabulary)


@compiled
def owner_of(key: float, block: int, vocabulary: int) -> int:
    """The token of a block that has its least variable."""
    word = random_word(seed_of(key, OWNERS), block) >> np.uint64(32)
    return block * BLOCK + int((word * np.uint64(block_size(block, vocabulary))) >> np.uint64(32))


@compiled
def exponential_of(key: float, token: int, least: float, owner: int) -> float:
    """The exponential variable of a token, from the least one of its block and the token that has it."""
    return least if token == owner else least - math.log(uniform(seed_of(key, TOKENS), token))


def _draw(key: float, least: Doubles, owners: npt.NDArray[np.int64], uniforms: Doubles) -> None:
    """The least variable of each block and its token, and the uniform variable of every token."""
    vocabulary = len(uniforms)
    for block in range(len(least)):
        least[block] = least_of(key, block, vocabulary)
        owners[block] = owner_of(key, block, vocabulary)
    seed = seed_of(key, TOKENS)
    for token in range(vocabulary):
        uniforms[token] = uniform(seed, token)


draw = exported(_draw)


def gumbels_of(key: float, vocabulary: int) -> Doubles:
    """The noise (V,) of a position: −log E of each token."""
    blocks = -(-vocabulary // BLOCK)
    least, owners, found = np.empty(blocks), np.empty(blocks, np.int64), np.empty(vocabulary)
    draw(key, least, owners, found)
    np.log(found, out=found)
    found[owners] = 0.0
    np.subtract(np.repeat(least, BLOCK)[:vocabulary], found, out=found)
    np.log(found, out=found)
    return np.negative(found, out=found)
