"""Counts the n-grams of a text as sorted runs on disk, in bounded memory; one process of several may count a part.

A hash table (`kernels.ngram_counts`) has the n-grams of a part of the text; when it is full, they are sorted and
written as a run, and it begins again. So a run is as long as the memory allows, and repeated n-grams take no more of
it. What is imported here does not need torch: workers start fast.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chainrule.data.token_files import TokenFile
from chainrule.errors import DataError
from chainrule.kernels.ngram_counts import COUNT, EMPTY, KEY, POSITION, STATE, USED, count_ngrams, slots_of_length
from chainrule.nn.columns import Array, Store
from chainrule.nn.sorted_runs import CountLevel, Run, SortedRuns

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SLOT_BYTES = 48  # per slot of the table, while it is sorted
FILLED = 0.75  # fraction of the slots that is used
CHUNK_BYTES = 64  # per token that is read at once
LARGEST_CHUNK = 1 << 20


def tokens_at_once(memory: int) -> int:
    return max(1 << 8, min(LARGEST_CHUNK, memory // CHUNK_BYTES // 4))


class RunCounter:
    """Counts a text that is added in pieces."""

    def __init__(self, store: Store, order: int, base: int) -> None:
        assert store.memory is not None
        self.store, self.order, self.base = store, order, base
        size = max(1 << 10, 2 * (order + 1) ** 2, (store.memory * 7 // 8) // SLOT_BYTES)
        self._slots = np.empty((min(size, 1 << 31), 2), np.int64)
        self._lengths = np.empty(len(self._slots), np.uint16)
        self._limit = int(FILLED * len(self._slots))
        self._unigrams = np.zeros(base, np.int64)
        self._nodes = np.full(order, -1, np.int64)
        self._last = np.empty(0, np.int64)  # tokens before the next ones
        self._used = self._total = 0
        self._runs: list[Run] = []
        self._clear()

    def add(self, tokens: Integers, counted: Flags) -> None:
        """Count the n-grams that end where `counted` says; −1 parts what does not belong together."""
        if len(tokens) and int(tokens.max()) >= self.base:
            raise DataError(
                f"token id {int(tokens.max())} is not below {self.base - 1}, the size of the vocabulary; encode the "
                "text with the model's own tokenizer"
            )
        stream = np.concatenate([self._last, tokens])
        flags = np.concatenate([np.zeros(len(self._last), np.bool_), counted])
        state = np.zeros(STATE, np.int64)
        state[POSITION], state[USED] = len(self._last), self._used
        while True:
            count_ngrams(
                stream, flags, self.base, self._limit, self._unigrams, self._nodes, self._slots, self._lengths, state
            )
            end, self._used = int(state[POSITION]), int(state[USED])
            if end == len(stream):
                break
            self._write_run()
            begin = max(0, end - (self.order - 1))  # the nodes of the tokens before are found again
            flags[begin:end] = False
            state[POSITION], state[USED] = begin, 0
        self._total += int(np.count_nonzero(counted))
        self._last = stream[len(stream) - min(len(stream), self.order - 1) :].copy()

    def finish(self) -> list[Run]:
        """The runs of all that was added; none if nothing was counted. The counter must not be used any more."""
        if self._total and (self._used or self._unigrams.any()):
            self._write_run()
        self._slots, self._lengths = np.empty((0, 2), np.int64), np.empty(0, np.uint16)
        return self._runs

    def _clear(self) -> None:
        self._slots[:, KEY], self._slots[:, COUNT] = EMPTY, 0
        self._lengths[:] = 0
        self._unigrams[:] = 0
        self._nodes[:] = -1
        self._used = 0

    def _write_run(self) -> None:
        self._runs.append([self._level(np.arange(self.base), self._unigrams)])
        ranks = np.empty(len(self._slots), np.int32)  # of the n-gram of each slot among those of its length
        numbers = np.bincount(self._lengths, minlength=self.order + 1) if self._used else np.zeros(self.order + 1, int)
        for length in range(2, self.order + 1):
            found, keys = np.empty(numbers[length], np.int32), np.empty(numbers[length], np.int64)
            slots_of_length(length, self.base, self._slots, self._lengths, ranks, found, keys)
            places = np.argsort(keys)
            found = found[places]
            ranks[found] = np.arange(len(found), dtype=np.int32)
            self._runs[-1].append(self._level(keys[places], self._slots[found, COUNT]))
        self._clear()

    def _level(self, keys: Array, numbers: Array) -> CountLevel:
        level = CountLevel(self.store.column(np.int64), self.store.column(np.int64))
        level.keys.append(keys)
        level.numbers.append(numbers)
        return level


def count_part(
    text: TokenFile,
    begin: int,
    end: int,
    progress: Callable[[float], None] | None,
    *,
    order: int,
    base: int,
    folder: Path,
    memory: int,
    merged: bool,
) -> list[Run]:
    """Count a part of a text; the runs are files in a new folder, so that a job that is lost may be done again.

    `merged` runs are one: workers share the merging, and what is left of it are as many runs as there are parts.
    """
    store = Store(Path(tempfile.mkdtemp(dir=folder)), memory)
    counter = RunCounter(store, order, base)
    bos = base - 1
    before = text.stream(max(0, begin - (order - 1)), begin, bos)
    counter.add(before, np.zeros(len(before), np.bool_))
    size = tokens_at_once(memory)
    for first in range(begin, end, size):
        last = min(first + size, end)
        stream = text.stream(first, last, bos)
        counter.add(stream, (stream >= 0) & (stream != bos))
        if progress is not None:
            progress((last - begin) / (end - begin))
    runs = counter.finish()
    return [SortedRuns(runs, store, base).merge(lambda _: None)] if merged and runs else runs
