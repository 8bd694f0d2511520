"""A few tokens through the tables of an n-gram model, in NumPy.

What `ngram` does for all n-grams of a batch at once takes torch about a hundred operations, whose dispatch costs more
than a millisecond even for a single token. Here each token takes a handful of searches in sorted arrays, some tens of
microseconds: little enough to draft for a network (see `decoding.speculative`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from chainrule.nn.linear import EXACT

Numbers = npt.NDArray[np.floating[Any]]
Keys = npt.NDArray[np.int64]

FEW = 24
"""Tokens for which one after the other is still faster than all at once."""

REMEMBERED = 1 << 16  # answers about single tokens, about 20 MB


def can_go_alone(tokens: Tensor, like: Tensor) -> bool:
    """A few tokens on the CPU, in full precision."""
    return tokens.numel() <= FEW and like.device.type == "cpu" and like.dtype in EXACT


@dataclass(frozen=True)
class Levels:
    """The tables of a model, one for each order, as NumPy sees their memory; see `ngram` for what they hold."""

    keys: list[Keys]  # from bigrams up: those of unigrams are the tokens themselves
    log_probs: list[Numbers]  # from unigrams up
    log_backoffs: list[Numbers]  # from unigrams to all but the last
    base: int

    @classmethod
    def of(cls, buffers: Mapping[str, Tensor | None], order: int, base: int) -> Levels:
        """From the buffers of an `NGram`."""
        arrays = {name: buffer.numpy() for name, buffer in buffers.items() if buffer is not None}
        return cls(
            [arrays[f"keys_{level}"] for level in range(2, order + 1)],
            [arrays[f"log_probs_{level}"] for level in range(1, order + 1)],
            [arrays[f"log_backoffs_{level}"] for level in range(1, order)],
            base,
        )

    def read(self, token: int, nodes: Sequence[int]) -> list[int]:
        """From the nodes of the last 1, 2, … tokens, −1 where there is none, to those after one more."""
        return list(self.follow(token, nodes)[1])

    def follow(self, token: int, nodes: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """The log-probability of one token after these nodes, and the nodes after it."""
        unigrams, *longer = self.plain
        nats, found = unigrams[token], [token]
        for (keys, log_probs, backoffs), node in zip(longer, nodes, strict=True):
            if node < 0:
                found.append(-1)
                continue
            wanted = node * self.base + token
            place = bisect_left(keys, wanted)
            if place < len(keys) and keys[place] == wanted:
                nats = log_probs[place]
                found.append(place)
            else:
                nats += backoffs[node]
                found.append(-1)
        return nats, tuple(found[:-1])

    @cached_property
    def plain(self) -> list[Any]:
        """The tables as Python sees them, which reads single numbers faster than NumPy does."""
        views = zip(self.keys, self.log_probs[1:], self.log_backoffs, strict=True)
        return [self.log_probs[0].data, *(tuple(array.data for array in level) for level in views)]

    def predict(self, nodes: Sequence[int], result: Numbers) -> None:
        """Write (V,) log-probabilities: each order, upwards, over those of tokens that it has seen."""
        factors = [result.dtype.type(0)]
        for backoffs, node in zip(reversed(self.log_backoffs), reversed(nodes), strict=True):
            factors.append(factors[-1] + backoffs[node] if node >= 0 else factors[-1])
        np.add(self.log_probs[0], factors.pop(), out=result)
        for keys, log_probs, node in zip(self.keys, self.log_probs[1:], nodes, strict=True):
            factor = factors.pop()
            if node >= 0:
                corner = node * self.base
                first, last = keys.searchsorted((corner, corner + self.base))
                result[keys[first:last] - corner] = log_probs[first:last] + factor

    def likeliest(self, nodes: Sequence[int]) -> int:
        """The token that `predict` would find likeliest, without the others.

        It is the likeliest of those seen after one of the contexts. Interpolation never makes a token less likely in a
        longer context than backing off from there would, so no token is missed.
        """
        best, best_log_prob, factor = 0, -math.inf, 0.0
        for (tokens, log_probs), backoffs, node in zip(
            reversed(self.favourites), reversed(self.log_backoffs), reversed(nodes), strict=True
        ):
            if node >= 0:
                if (log_prob := float(log_probs[node]) + factor) > best_log_prob:
                    best, best_log_prob = int(tokens[node]), log_prob
                factor += float(backoffs[node])
        token, log_prob = self.favourite
        return token if log_prob + factor > best_log_prob else best

    @cached_property
    def asked(self) -> Callable[[int, tuple[int, ...]], tuple[float, tuple[int, ...]]]:
        """`follow`, with what was asked lately at hand: searches ask the same again and again."""
        return lru_cache(REMEMBERED)(self.follow)

    @cached_property
    def favourite(self) -> tuple[int, float]:
        """The likeliest token after nothing that was seen, and its log-probability."""
        token = int(self.log_probs[0].argmax())
        return token, float(self.log_probs[0][token])

    @cached_property
    def favourites(self) -> list[tuple[Keys, Numbers]]:
        """For contexts of 1, 2, … tokens: of each node the likeliest token seen after it, and its log-probability."""
        found = []
        for keys, log_probs, contexts in zip(self.keys, self.log_probs[1:], self.log_backoffs, strict=True):
            tokens, best = np.zeros(len(contexts), np.int64), np.full(len(contexts), -np.inf, log_probs.dtype)
            parents, last = np.divmod(keys, self.base)
            np.maximum.at(best, parents, log_probs)
            first = (log_probs == best[parents]).nonzero()[0][::-1]  # backwards: of equals the lowest id comes last
            tokens[parents[first]] = last[first]
            found.append((tokens, best))
        return found
