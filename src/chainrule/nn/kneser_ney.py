"""Interpolated modified Kneser–Ney smoothing of counts in columns, in memory or on disk, chunk by chunk.

All sums are of integers, so that the result does not depend on the chunks: an n-gram model is the same bit for bit
whether its counts fit into memory or not. See `models.ngram` for the equations. Levels are numbered from 0, unigrams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.nn.backoff import discounts_from
from chainrule.nn.columns import Column, Gather, SortedSearch, Store, answers
from chainrule.nn.sorted_runs import CountLevel

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


class TableColumns(NamedTuple):
    """One `backoff.BackoffTable` as columns."""

    keys: Column
    log_probs: Column
    log_backoffs: Column  # empty at the highest order


class KneserNey:
    """Estimates back-off tables from counts.

    `thresholds` has a count for each order, not decreasing and 0 for unigrams: n-grams that occur at most so often are
    left out of the tables, and their probability goes to the shorter context.
    """

    def __init__(
        self,
        levels: Sequence[CountLevel],
        base: int,
        store: Store,
        *,
        thresholds: Sequence[int],
        dtype: npt.DTypeLike,
        progress: Callable[[float], None],
    ) -> None:
        self.levels, self.base, self.store, self.thresholds = levels, base, store, thresholds
        self.dtype, self.progress = dtype, progress
        self.suffixes: list[Column] = []  # of each level from 1 up: the node of the n-gram without its first token
        self.preceding: list[Column] = []  # of each level but the last: how many different tokens come before it
        self.starts = self._first_with_bos()

    def tables(self) -> list[TableColumns]:
        """The tables of all orders."""
        self._find_suffixes()
        found: list[TableColumns] = []
        lower: Column | None = None  # probabilities of the level below
        renumbered: Column | None = None  # its nodes in the table, if some n-grams of it are left out
        for level in range(len(self.levels)):
            amounts = np.array((0.0, *discounts_from(self._counts_of_counts(level))))
            totals, backoffs = self._contexts(level, amounts)
            if level:
                found[-1] = found[-1]._replace(log_backoffs=self._log_backoffs(level, backoffs))
            table, above = self._probabilities(level, amounts, totals, backoffs, lower, renumbered)
            found.append(table)
            renumbered = self._renumbered(level)
            for column in (totals, backoffs, *(() if lower is None else (lower,))):
                column.delete()
            lower = above
            self.progress((len(self.levels) + level) / (2 * len(self.levels)))
        return found

    # The nodes of suffixes

    def _first_with_bos(self) -> list[int]:
        """For each level, the index of the first n-gram with BOS, whose id is the largest; they are the last ones."""
        starts = [self.base - 1]
        for keys, _ in self.levels[1:]:
            starts.append(_count_below(keys, starts[-1] * self.base))
        return starts

    def _find_suffixes(self) -> None:
        for level in range(1, len(self.levels)):
            suffixes, preceding = self.store.column(np.int64), self.store.column(np.int64)
            if level == 1:
                counts = np.zeros(self.base, np.int64)
                for _, tokens in self._keys(level):
                    suffixes.append(tokens)
                    counts += np.bincount(tokens, minlength=self.base)
                preceding.append(counts)
            else:
                keys = self.levels[level].keys
                table = SortedSearch(self.levels[level - 1].keys, preceding, self.store)
                for found in answers(table, self._suffix_keys(level), len(keys), self.store):
                    suffixes.append(found)
            self.suffixes.append(suffixes)
            self.preceding.append(preceding)
            self.progress(level / (2 * len(self.levels)))

    def _suffix_keys(self, level: int) -> Callable[[int, int], Integers]:
        """The keys, at the level below, of the n-grams without their first tokens."""
        keys, below = self.levels[level].keys, self.suffixes[level - 2]

        def wanted(begin: int, end: int) -> Integers:
            parents, tokens = np.divmod(keys.read(begin, end), self.base)
            nodes = below.read(int(parents[0]), int(parents[-1]) + 1)
            return nodes[parents - parents[0]] * self.base + tokens  # type: ignore[no-any-return]

        return wanted

    # Chunks

    def _keys(self, level: int) -> Iterator[tuple[Integers, Integers]]:
        """Contexts and last tokens."""
        for begin, end in self.store.spans(len(self.levels[level].keys)):
            yield np.divmod(self.levels[level].keys.read(begin, end), self.base)

    def _adjusted(self, level: int) -> Iterator[Integers]:
        """a(·): how many different tokens come before an n-gram, or its count where that says nothing."""
        numbers = self.levels[level].numbers
        for begin, end in self.store.spans(len(numbers)):
            if level == len(self.levels) - 1:
                yield numbers.read(begin, end)
                continue
            found = self.preceding[level].read(begin, end).copy()
            if end > self.starts[level]:
                first = max(begin, self.starts[level])
                found[first - begin :] = numbers.read(first, end)
            yield found

    def _kept(self, level: int) -> Iterator[npt.NDArray[np.bool_]]:
        """Whether an n-gram is in the table."""
        numbers = self.levels[level].numbers
        for begin, end in self.store.spans(len(numbers)):
            if not self.thresholds[level]:
                yield np.ones(end - begin, np.bool_)
            else:
                yield numbers.read(begin, end) > self.thresholds[level]

    def _counts_of_counts(self, level: int) -> list[int]:
        """How many n-grams have a = 1, 2, 3 and 4."""
        found = np.zeros(6, np.int64)
        for adjusted in self._adjusted(level):
            found += np.bincount(np.minimum(adjusted, 5), minlength=6)
        return [int(number) for number in found[1:5]]

    # Contexts

    def _contexts(self, level: int, amounts: Doubles) -> tuple[Column, Column]:
        """Of each context of a level: the sum of a over its continuations, and the back-off weight."""
        totals, backoffs = self.store.column(np.float64), self.store.column(np.float64)
        count = len(self.levels[level - 1].keys) if level else 1
        weights = np.append(amounts[1:], 1.0)

        def write(sums: Doubles) -> None:
            """Sums (5, C): of a, the numbers with a = 1, 2 and more of those kept, and of a of those left out."""
            total = sums[0]
            mass = sum(weight * one for weight, one in zip(weights, sums[1:], strict=True))
            totals.append(total)  # the last n-gram of a text may be the context of nothing
            backoffs.append(np.where(total > 0, mass / np.where(total > 0, total, 1.0), 1.0))

        first, carried = 0, np.zeros((5, 1))
        for (parents, _), adjusted, kept in zip(
            self._keys(level), self._adjusted(level), self._kept(level), strict=True
        ):
            places = parents - first
            width = int(places[-1]) + 1
            sums = np.stack(
                [
                    np.bincount(places, adjusted, minlength=width),
                    *(np.bincount(places[kept & which], minlength=width) for which in _classes(adjusted)),
                    np.bincount(places, np.where(kept, 0, adjusted), minlength=width),
                ]
            ).astype(np.float64)
            sums[:, :1] += carried
            write(sums[:, :-1])
            first, carried = first + width - 1, sums[:, -1:]
        if count:
            write(carried)
        for begin, end in self.store.spans(count - len(totals)):
            write(np.zeros((5, end - begin)))
        return totals, backoffs

    def _log_backoffs(self, level: int, backoffs: Column) -> Column:
        """The logarithms of the back-off weights of the contexts that are in the table."""
        found = self.store.column(self.dtype)
        for (begin, end), kept in zip(self.store.spans(len(backoffs)), self._kept(level - 1), strict=True):
            found.append(np.log(backoffs.read(begin, end)[kept]))
        return found

    def _renumbered(self, level: int) -> Column | None:
        """The nodes of a level in its table; None if they are the same."""
        if not self.thresholds[level]:
            return None
        found, count = self.store.column(np.int64), 0
        for kept in self._kept(level):
            found.append(count + kept.cumsum() - 1)
            count += int(np.count_nonzero(kept))
        return found

    # Probabilities

    def _probabilities(
        self,
        level: int,
        amounts: Doubles,
        totals: Column,
        backoffs: Column,
        lower: Column | None,
        renumbered: Column | None,
    ) -> tuple[TableColumns, Column]:
        """The table of a level without its back-off weights, and the probabilities of all its n-grams."""
        store = self.store
        table = TableColumns(store.column(np.int64), store.column(self.dtype), store.column(self.dtype))
        found = store.column(np.float64)
        chunks = zip(
            self._keys(level), self._adjusted(level), self._kept(level), self._lower(level, lower), strict=True
        )
        for (parents, tokens), adjusted, kept, shorter in chunks:
            first, end = int(parents[0]), int(parents[-1]) + 1
            contexts = parents - first
            total, backoff = (column.read(first, end)[contexts] for column in (totals, backoffs))
            share = (adjusted - amounts[np.minimum(adjusted, 3)]) / total + backoff * shorter
            found.append(share)
            nodes = parents if renumbered is None else renumbered.read(first, end)[contexts]
            table.keys.append((nodes * self.base + tokens)[kept])
            table.log_probs.append(np.log(share[kept]))
        return table, found

    def _lower(self, level: int, lower: Column | None) -> Iterator[Doubles]:
        """p(w | c′); below the unigrams it is uniform."""
        if lower is None:
            for begin, end in self.store.spans(len(self.levels[level].keys)):
                yield np.full(end - begin, 1 / (self.base - 1))
            return
        suffixes = self.suffixes[level - 1]
        yield from answers(Gather(lower, self.store), suffixes.read, len(suffixes), self.store)


def _classes(adjusted: Integers) -> tuple[npt.NDArray[np.bool_], ...]:
    return adjusted == 1, adjusted == 2, adjusted >= 3


def _count_below(keys: Column, bound: int) -> int:
    """The number of keys below a bound, by binary search."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if int(keys.read(middle, middle + 1)[0]) < bound:
            low = middle + 1
        else:
            high = middle
    return low
