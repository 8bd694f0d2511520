"""The compiled look-up of a back-off model: what `kernels.backoff` computes, on the tables of a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.kernels.step import Choices
from chainrule.nn.ctc import CandidatesOfRows, FusedTarget, FusionWeights

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

MAX_INDEX = 1 << 21  # entries of an index, 16 MB: opening a table of any size takes a fraction of a second

_ready: set[tuple[str, str]] = set()  # functions that are loaded, with the type of the tables


class Scores(NamedTuple):
    log_probs: Doubles  # (B, T)
    hits: npt.NDArray[np.bool_]  # (B, T), or (0, 0)


class BackoffLookup:
    """The tables of a model whose contexts are its last tokens, in memory or in a mapped file.

    All methods change the nodes (B, order − 1) that they are given to those after the tokens that they read.
    """

    def __init__(self, buffers: Mapping[str, Tensor | None], order: int, base: int) -> None:
        arrays = {name: buffer.numpy() for name, buffer in buffers.items() if buffer is not None}
        nothing = np.empty(0)
        self.order, self.base = order, base
        self.keys = [np.arange(base), *(arrays[f"keys_{level}"] for level in range(2, order + 1))]
        self.log_probs = [arrays[f"log_probs_{level}"] for level in range(1, order + 1)]
        self.log_backoffs = [*(arrays[f"log_backoffs_{level}"] for level in range(1, order)), nothing]
        self.scales = arrays.get("scales", np.empty((0, 0))).astype(np.float64)
        self.dtype = self.log_probs[0].dtype  # of predictions
        self.like = np.empty(0, np.int16 if len(self.scales) else self.dtype)
        self.log_probs[0] = self.log_probs[0].astype(np.float64)

    @cached_property
    def levels(self) -> Integers:
        """The addresses of the tables; see `kernels.backoff`."""
        from chainrule.kernels.backoff import COLUMNS, INDEX, SHIFT

        levels = np.zeros((self.order, COLUMNS), dtype=np.int64)
        columns = zip(self.keys, self.log_probs, self.log_backoffs, strict=True)
        for level, arrays in enumerate(columns):
            levels[level, :4] = [*(array.ctypes.data for array in arrays), len(arrays[0])]
        for level, (index, shift) in enumerate(self.indices, start=1):
            levels[level, INDEX], levels[level, SHIFT] = index.ctypes.data, shift
        return levels

    @cached_property
    def indices(self) -> list[tuple[Integers, int]]:
        """For bigrams, trigrams, …: where the keys of every 2^shift-th context begin, and the shift."""
        from chainrule.kernels.backoff import index_of

        found = []
        for keys, backoffs in zip(self.keys[1:], self.log_backoffs, strict=False):
            shift = max(0, (len(backoffs) // MAX_INDEX).bit_length())
            index = np.empty((len(backoffs) >> shift) + 2, np.int64)
            self._call(index_of, keys, self.base, shift, index)
            found.append((index, shift))
        return found

    @cached_property
    def best(self) -> list[tuple[Integers, Doubles]]:
        """For contexts of 1, 2, … tokens, the most probable observed continuation and its log-probability."""
        from chainrule.kernels.backoff import best_continuations

        found = []
        for level in range(1, self.order):
            contexts = len(self.log_backoffs[level - 1])
            tokens, log_probs = np.empty(contexts, np.int64), np.empty(contexts)
            self._call(
                best_continuations,
                self.keys[level],
                self.log_probs[level],
                self.scales,
                2 * level,
                self.base,
                tokens,
                log_probs,
            )
            found.append((tokens, log_probs))
        return found

    @cached_property
    def levels_with_best(self) -> Integers:
        """The addresses of the tables with those of `best`."""
        from chainrule.kernels.backoff import BEST_LOG_PROBS, BEST_TOKENS

        levels = self.levels.copy()
        for level, (tokens, log_probs) in enumerate(self.best, start=1):
            levels[level, BEST_TOKENS], levels[level, BEST_LOG_PROBS] = tokens.ctypes.data, log_probs.ctypes.data
        return levels

    @cached_property
    def by_frequency(self) -> Integers:
        """The tokens, the most probable unigrams first; of several alike, the one with the lowest id."""
        return np.argsort(-self.log_probs[0], kind="stable")

    @cached_property
    def block_best(self) -> Doubles:
        """The largest log-probability of the unigrams in each block of `kernels.keyed_noise`."""
        from chainrule.kernels.keyed_noise import BLOCK

        log_probs = self.log_probs[0][: self.base - 1]
        return np.maximum.reduceat(log_probs, np.arange(0, len(log_probs), BLOCK))

    def score(self, ids: Integers, lengths: Integers, nodes: Integers, *, hits: bool) -> Scores:
        """The log-probabilities of the first tokens of each row (B, T), and whether they were the most probable."""
        from chainrule.kernels.backoff import score

        found = Scores(np.zeros(ids.shape), np.zeros(ids.shape if hits else (0, 0), np.bool_))
        levels, by_frequency = (self.levels_with_best, self.by_frequency) if hits else (self.levels, ids[:0, 0])
        wide = self._with_highest_order(nodes)
        self._call(
            score,
            levels,
            self.base,
            self.scales,
            ids,
            lengths,
            wide,
            found.log_probs,
            by_frequency.copy(),
            found.hits,
            self.like,
        )
        nodes[:] = wide[:, :-1]
        return found

    def predict(self, ids: Integers, nodes: Integers) -> npt.NDArray[Any]:
        """Log-probabilities (B, K, V) after each of the tokens (B, K)."""
        from chainrule.kernels.backoff import predict

        result = np.empty((*ids.shape, self.base - 1), self.dtype)
        wide = self._with_highest_order(nodes)
        self._call(predict, self.levels, self.base, self.scales, ids, wide, result, self.like)
        nodes[:] = wide[:, :-1]
        return result

    def generate(
        self, tokens: Integers, nodes: Integers, noise: Doubles, rules: Doubles, suppressed: Integers
    ) -> Choices:
        """Read a token (B,) in each row and choose the next, once for each position of the noise (B, S, V or 0).

        Noise (B, S, 1) has the keys of `kernels.keyed_noise`, for rules without filters.
        """
        from chainrule.kernels.backoff import generate

        rows, steps, width = noise.shape
        choices = Choices(np.empty((rows, steps), np.int64), np.empty((rows, steps)))
        levels = self.levels if width else self.levels_with_best
        wide = self._with_highest_order(nodes)
        block_best = self.block_best if width == 1 < self.base - 1 else np.empty(0)
        self._call(
            generate, levels, self.base, self.scales, tokens, wide, *choices, noise, rules, suppressed,
            self.by_frequency, block_best, self.like,
        )  # fmt: skip
        nodes[:] = wide[:, :-1]
        return choices

    def search(
        self, nodes: Integers, weights: FusionWeights, width: int, candidates: CandidatesOfRows
    ) -> list[FusedTarget]:
        """CTC beam search of each row with shallow fusion, from the nodes (1, order − 1) before a target."""
        from chainrule.kernels.prefix_beams import search

        rows = len(candidates.frames)
        ids = np.empty((rows, int(candidates.frames.max(initial=0))), np.int64)
        lengths, nats = np.empty(rows, np.int64), np.empty((rows, 2))
        self._call(
            search,
            self.levels,
            self.base,
            self.scales,
            self._with_highest_order(nodes)[0],
            np.array(weights, dtype=np.float64),
            width,
            *candidates,
            ids,
            lengths,
            nats,
            self.like,
        )
        return [
            FusedTarget(row[:length], log_prob, log_prob + fusion)
            for row, length, (log_prob, fusion) in zip(ids.tolist(), lengths.tolist(), nats.tolist(), strict=True)
        ]

    def _with_highest_order(self, nodes: Integers) -> Integers:
        """Nodes with a column for the highest order, of which nothing is remembered or needed."""
        return np.pad(nodes, ((0, 0), (0, 1)), constant_values=-1)

    def _call(self, function: Any, *arguments: Any) -> None:
        name = (function.__name__, f"{self.like.dtype} {self.dtype}")
        if name not in _ready:
            from chainrule.kernels.caching import load_or_compile

            load_or_compile(function, arguments)
            _ready.add(name)
        function(*arguments)


def as_array(tensor: Tensor) -> Integers:
    """A contiguous copy of integers, which compiled code may change."""
    return np.array(tensor.cpu().numpy(), dtype=np.int64, order="C")


def as_tensor(nodes: Integers, like: Tensor) -> Tensor:
    return torch.from_numpy(nodes).to(like.device)
