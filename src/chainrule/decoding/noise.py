"""Gumbel noise for sampling: one value for each token, at each position of a row, from the seed of the row.

Small vocabularies take it from a random stream. In large ones drawing it for every token takes longer than an n-gram
takes to predict, so there any value can be computed by itself (`kernels.keyed_noise`). The value is −log E of an
exponential variable E. The n tokens of a block share the least of their variables, E_b, an exponential one divided by
n; one of them, at random, has it, and each of the others has E_b plus a new exponential variable, since these are
memoryless. So all are independent, and E_b bounds what the tokens of a block can reach: `kernels.backoff` samples
without computing the noise of most of them. Random numbers are those of SplitMix64 (Steele et al. 2014), whose n-th
number can be computed directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LARGE = 4096
"""The smallest vocabulary whose noise is computed from keys, where there is compiled code for it."""

SMALLEST_EXPONENTIAL = 1e-300  # of 2^53 draws one is 0, whose logarithm is infinite


class RowNoise(ABC):
    """The noise of one row: values at position n depend only on its seed and n, not on how far ahead they are read."""

    @abstractmethod
    def peek(self, count: int) -> Tensor:
        """The noise (count, V) of the next positions, in float64, without consuming it."""

    @abstractmethod
    def consume(self, count: int) -> None:
        """Advance by a number of positions."""


def row_noise(seed: int, vocabulary: int) -> RowNoise:
    """Of a seed; the same on every machine with Numba."""
    return KeyedNoise(seed, vocabulary) if vocabulary >= LARGE and find_spec("numba") else StreamNoise(seed, vocabulary)


class StreamNoise(RowNoise):
    """From a stream of NumPy, many positions per call: a quarter of the time that torch takes."""

    POSITIONS, NUMBERS = 64, 1 << 14  # maximum per call, but at least one position

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        self._positions = max(1, min(self.POSITIONS, self.NUMBERS // vocabulary))
        self._drawn = torch.empty(0, vocabulary, dtype=torch.float64)
        self._used = 0  # number of consumed positions in `_drawn`

    def peek(self, count: int) -> Tensor:
        if (missing := self._used + count - len(self._drawn)) > 0:
            self._draw(missing)
        return self._drawn[self._used : self._used + count]

    def consume(self, count: int) -> None:
        self._used += count

    def _draw(self, count: int) -> None:
        """Generate the noise of at least `count` more positions and drop what has been consumed."""
        more = [self._drawn[self._used :]]
        for _ in range(0, count, self._positions):
            exponentials = self._generator.standard_exponential((self._positions, self._vocabulary))
            more.append(torch.from_numpy(exponentials).clamp_(min=SMALLEST_EXPONENTIAL).log_().neg_())
        self._drawn = torch.cat(more)
        self._used = 0


class KeyedNoise(RowNoise):
    """Computed from a key for each position, from which `kernels.backoff` can compute it, too."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._generator = np.random.default_rng(seed)
        self._vocabulary = vocabulary
        self._position = 0
        self._keys: list[float] = []  # from the first position on
        self._known: dict[int, Tensor] = {}

    def keys(self, count: int) -> npt.NDArray[np.float64]:
        """The keys (count,) of the next positions: integers below 2^53, which float64 has exactly."""
        end = self._position + count
        if end > len(self._keys):
            self._keys += self._generator.integers(1 << 53, size=max(64, end - len(self._keys))).tolist()
        return np.array(self._keys[self._position : end], dtype=np.float64)

    def peek(self, count: int) -> Tensor:
        from chainrule.kernels.keyed_noise import gumbels_of

        for position, key in enumerate(self.keys(count), start=self._position):
            if position not in self._known:
                self._known[position] = torch.from_numpy(gumbels_of(key, self._vocabulary))
        return torch.stack([self._known[self._position + index] for index in range(count)])

    def consume(self, count: int) -> None:
        self._position += count
        self._known = {position: noise for position, noise in self._known.items() if position >= self._position}
