"""Long arrays that are written once, from their start to their end, and read in parts: in memory or in files.

Work that only reads and writes columns in chunks gives the same result wherever they are, in as much memory as a chunk
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Column:
    """One such array. In a file if a path is given, which must not exist yet."""

    def __init__(self, dtype: npt.DTypeLike, path: Path | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.path = path
        self._length = 0
        self._parts: list[Array] = []
        if path is not None:
            path.touch(exist_ok=False)

    def __len__(self) -> int:
        return self._length

    def append(self, values: Array) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        self._length += len(values)
        if self.path is None:
            self._parts.append(values)
        elif len(values):
            with self.path.open("ab") as file:
                file.write(values.data)  # ndarray.tofile does not report a full disk

    def read(self, begin: int, end: int) -> Array:
        """The values from `begin` to `end`; those of a file are a copy."""
        if self.path is None:
            return self.whole()[begin:end]
        return np.fromfile(self.path, self.dtype, count=max(0, end - begin), offset=begin * self.dtype.itemsize)

    def whole(self) -> Array:
        """All values; those of a file are mapped into memory, and read when they are used."""
        if self.path is not None:
            return np.memmap(self.path, self.dtype, "c") if self._length else np.empty(0, self.dtype)
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, self.dtype), *self._parts])]
        return self._parts[0]

    def delete(self) -> None:
        """Free the memory or the file; the column must not be used any more."""
        self._parts = []
        if self.path is not None:
            self.path.unlink()


class Store:
    """Creates columns: in a folder, or in memory if there is none.

    Work in chunks of `chunk` values, and tables of at most `block` values at a time, takes about `memory` bytes.
    """

    BYTES_PER_VALUE = 192  # of a chunk, with all temporary arrays; measured
    BLOCK_SHARE = 4  # a block takes this fraction of the memory
    IN_MEMORY_CHUNK = 1 << 18  # values that fit into the cache of a processor

    def __init__(self, folder: Path | None = None, memory: int | None = None) -> None:
        self.folder, self.memory = folder, memory
        self._numbers = count()
        self.chunk = self.IN_MEMORY_CHUNK
        self.block: int | None = None
        if memory is not None:
            self.chunk = max(1 << 10, min(1 << 22, memory // self.BYTES_PER_VALUE // 2))
            self.block = max(1 << 10, memory // self.BLOCK_SHARE // 8)

    def column(self, dtype: npt.DTypeLike) -> Column:
        return Column(dtype, None if self.folder is None else self.folder / f"{next(self._numbers)}.bin")

    def spans(self, length: int) -> Iterator[tuple[int, int]]:
        """Chunks of a column."""
        return spans(length, self.chunk)

    def blocks(self, length: int) -> list[tuple[int, int]]:
        """Blocks of a column, each of which fits into memory; at least one."""
        return list(spans(length, self.block or max(1, length))) or [(0, 0)]


def spans(length: int, size: int) -> Iterator[tuple[int, int]]:
    """The begin and end of consecutive parts of at most `size`."""
    return ((begin, min(begin + size, length)) for begin in range(0, length, size))


class Table(Protocol):
    """Answers queries block by block (see `answers`)."""

    blocks: list[tuple[int, int]]

    def block_of(self, queries: Array) -> Array:
        """The number of the block that answers each query."""

    def open(self, block: int) -> None:
        """Read a block; all queries are to it until it is closed."""

    def answer(self, queries: Array) -> Array: ...

    def close(self) -> None: ...


def answers(table: Table, queries: Callable[[int, int], Array], length: int, store: Store) -> Iterator[Array]:
    """The answers to `length` queries, in their order, chunk by chunk; `queries` gives them from a begin to an end.

    If the table does not fit into memory, the queries are first sorted by the block that answers them, and the answers
    brought back into their order: everything is read and written sequentially.
    """
    if len(table.blocks) == 1:
        table.open(0)
        for begin, end in store.spans(length):
            yield table.answer(queries(begin, end))
        table.close()
        return
    asked = [store.column(np.int64) for _ in table.blocks]
    for begin, end in store.spans(length):
        chunk = queries(begin, end)
        blocks = table.block_of(chunk)
        for block in np.unique(blocks):
            asked[block].append(chunk[blocks == block])
    answered: list[Column] = []
    for block, waiting in enumerate(asked):
        table.open(block)
        for begin, end in store.spans(len(waiting)):
            found = table.answer(waiting.read(begin, end))
            if begin == 0:
                answered.append(store.column(found.dtype))
            answered[-1].append(found)
        if not len(waiting):
            answered.append(store.column(np.int64))
        table.close()
        waiting.delete()
    read = [0] * len(answered)
    for begin, end in store.spans(length):
        blocks = table.block_of(queries(begin, end))
        result: Array | None = None
        for block in np.unique(blocks):
            here = blocks == block
            count = int(np.count_nonzero(here))
            values = answered[block].read(read[block], read[block] + count)
            result = np.empty(len(blocks), values.dtype) if result is None else result
            result[here] = values
            read[block] += count
        assert result is not None
        yield result
    for column in answered:
        column.delete()


class Gather:
    """A table that answers an index by the value there."""

    def __init__(self, values: Column, store: Store) -> None:
        self.values, self.blocks = values, store.blocks(len(values))
        self._size = self.blocks[0][1] or 1
        self._first, self._block = 0, np.empty(0)

    def block_of(self, queries: Array) -> Array:
        return queries // self._size

    def open(self, block: int) -> None:
        self._first, end = self.blocks[block]
        self._block = self.values.read(self._first, end)

    def answer(self, queries: Array) -> Array:
        found: Array = self._block[queries - self._first]
        return found

    def close(self) -> None:
        self._block = np.empty(0)


class SortedSearch:
    """A table that answers a key by its index in a sorted column, which must have it; counts the queries of each."""

    def __init__(self, keys: Column, asked: Column, store: Store) -> None:
        self.keys, self.asked, self.blocks = keys, asked, store.blocks(len(keys))
        starts = [int(keys.read(begin, begin + 1)[0]) for begin, _ in self.blocks[1:]]
        self._starts = np.array(starts, np.int64)
        self._first, self._block, self._counts = 0, np.empty(0, np.int64), np.empty(0, np.int64)

    def block_of(self, queries: Array) -> Array:
        return self._starts.searchsorted(queries, side="right")

    def open(self, block: int) -> None:
        self._first, end = self.blocks[block]
        self._block = self.keys.read(self._first, end)
        self._counts = np.zeros(len(self._block), np.int64)

    def answer(self, queries: Array) -> Array:
        found = self._block.searchsorted(queries)
        np.add.at(self._counts, found, 1)
        return found + self._first

    def close(self) -> None:
        self.asked.append(self._counts)
        self._block = self._counts = np.empty(0, np.int64)
