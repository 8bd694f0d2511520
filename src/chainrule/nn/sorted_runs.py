"""Counts that do not fit into memory: sorted runs on disk, and their merge.

A run has the counts of a part of a text, as a trie (see `backoff.Counts`): the key of an n-gram is (node of its first
tokens in the level below) * base + its last token, so that keys of different runs cannot be compared before the level
below is merged. Level by level, the nodes of a run are replaced by those of the merged level below; the keys are sorted
as before, and a k-way merge of all runs gives the merged level and the new nodes of each run. Everything is read and
written sequentially.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.nn.columns import Column, Store

if TYPE_CHECKING:  # imports torch, which workers do not need
    from chainrule.nn.backoff import Counts

Integers = npt.NDArray[np.int64]

MERGING_BYTES = 160  # per key in the buffers of a merge, with all temporary arrays
LARGEST = np.iinfo(np.int64).max


class CountLevel(NamedTuple):
    """The n-grams of one length, sorted by key, and their counts."""

    keys: Column
    numbers: Column


Run = list[CountLevel]
"""The n-grams of a part of a text, of each length from 1 up."""


def levels_of(counts: Counts, store: Store) -> Run:
    """Counts as columns."""
    found = []
    for keys, numbers in zip(*counts, strict=True):
        level = CountLevel(store.column(np.int64), store.column(np.int64))
        level.keys.append(keys.numpy())
        level.numbers.append(numbers.numpy())
        found.append(level)
    return found


class SortedRuns:
    """Merges runs."""

    def __init__(self, runs: Sequence[Run], store: Store, base: int) -> None:
        self.store, self.base, self._runs = store, base, runs

    def merge(self, progress: Callable[[float], None]) -> Run:
        """The sum of all runs, which are deleted."""
        if len(self._runs) == 1:
            return self._runs[0]
        first = self._merged_unigrams()
        merged = [first]
        nodes = [run[0].keys for run in self._runs]  # of the level below in each run, as nodes of the merged one
        total = sum(len(level.keys) for run in self._runs for level in run[1:])
        done = 0
        for number in range(1, len(self._runs[0])):
            levels = [run[number] for run in self._runs]
            merge = _LevelMerge(levels, nodes, self.base, self.store, lambda keys: progress((done + keys) / total))  # noqa: B023
            merged.append(merge.run())
            done += sum(len(level.keys) for level in levels)
            for column in (*nodes, *(column for level in levels for column in level)):
                column.delete()
            nodes = merge.nodes
        for column in nodes:
            column.delete()
        return merged

    def _merged_unigrams(self) -> CountLevel:
        """The first level, in which every run has all tokens."""
        level = CountLevel(self.store.column(np.int64), self.store.column(np.int64))
        level.keys.append(np.arange(self.base))
        level.numbers.append(sum(run[0].numbers.read(0, self.base) for run in self._runs))  # type: ignore[arg-type]
        for run in self._runs:
            run[0].numbers.delete()
        return level


class _LevelMerge:
    """The k-way merge of one level."""

    def __init__(
        self,
        levels: list[CountLevel],
        below: list[Column],
        base: int,
        store: Store,
        progress: Callable[[int], None],
    ) -> None:
        self.levels, self.below, self.base, self.progress = levels, below, base, progress
        self.merged = CountLevel(store.column(np.int64), store.column(np.int64))
        self.nodes = [store.column(np.int64) for _ in levels]
        memory = store.memory or 1 << 28
        self._size = max(1 << 9, memory // len(levels) // MERGING_BYTES)
        self._read = [0] * len(levels)
        nothing = np.empty(0, np.int64)
        self._buffers: list[tuple[Integers, Integers]] = [(nothing, nothing)] * len(levels)  # keys and numbers

    def run(self) -> CountLevel:
        while True:
            for run in range(len(self.levels)):
                self._fill(run)
            if not any(len(keys) for keys, _ in self._buffers):
                return self.merged
            self._merge_buffers()
            self.progress(sum(self._read))

    def _fill(self, run: int) -> None:
        """Read more of a run whose buffer is empty."""
        if len(self._buffers[run][0]):
            return
        begin = self._read[run]
        end = min(begin + self._size, len(self.levels[run].keys))
        keys = self.levels[run].keys.read(begin, end)
        if end > begin:
            parents, tokens = np.divmod(keys, self.base)
            nodes = self.below[run].read(int(parents[0]), int(parents[-1]) + 1)
            keys = nodes[parents - parents[0]] * self.base + tokens
        self._read[run] = end
        self._buffers[run] = keys, self.levels[run].numbers.read(begin, end)

    def _merge_buffers(self) -> None:
        """Merge all buffered keys up to the lowest last one of the runs that go on: no smaller one can follow."""
        bound = min(
            (
                int(keys[-1])
                for run, (keys, _) in enumerate(self._buffers)
                if self._read[run] < len(self.levels[run].keys)
            ),
            default=LARGEST,
        )
        taken: list[tuple[Integers, Integers]] = []
        for run, (keys, numbers) in enumerate(self._buffers):
            count = int(keys.searchsorted(bound, side="right"))
            taken.append((keys[:count], numbers[:count]))
            self._buffers[run] = keys[count:], numbers[count:]
        merged, indices = np.unique(np.concatenate([keys for keys, _ in taken]), return_inverse=True)
        numbers = np.zeros(len(merged), np.int64)
        np.add.at(numbers, indices, np.concatenate([numbers for _, numbers in taken]))
        indices += len(self.merged.keys)
        self.merged.keys.append(merged)
        self.merged.numbers.append(numbers)
        ends = np.cumsum([len(keys) for keys, _ in taken])
        for column, nodes in zip(self.nodes, np.split(indices, ends[:-1]), strict=True):
            column.append(nodes)
