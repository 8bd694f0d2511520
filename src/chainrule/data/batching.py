"""Batches whose order depends only on a seed and a position, so that a run resumes exactly.

Windows      random windows of a stream, for models that start every row from BOS
Lanes        the stream in parallel lanes, for models that carry their state (truncated back-propagation)
Documents    whole documents, sorted by length to minimise padding
Pairs        the same for documents that have a source
Chunks       the stream in order, with random numbers for every token

A feed is stateless except for caches. Of `world` processes, process `rank` gets the rows rank, rank + world, … of every
batch: together they have the batch of a single process. `of_process` gives a feed to one of them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.data.corpus import Corpus
from chainrule.data.parallel import PairedCorpus
from chainrule.data.permutation import draw, permute
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Sequences

Integers = npt.NDArray[np.int64]
BatchT = TypeVar("BatchT")

POOL = 64  # batches of documents that are sorted by length together


class Position(NamedTuple):
    """A position in the infinite sequence of batches."""

    epoch: int = 0
    index: int = 0  # type: ignore[assignment]  # hides tuple.index


class Segment(NamedTuple):
    """The next tokens of every lane."""

    inputs: Tensor  # (B, K) int64
    targets: Tensor  # (B, K): the token after each input
    fresh: bool  # these inputs do not continue the previous segment


class Feed(ABC, Generic[BatchT]):
    """A source of batches, addressed by position."""

    def __init__(self, seed: int, rank: int, world: int) -> None:
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is not one of {world} processes; ranks are 0 to {world - 1}")
        self.seed, self.rank, self.world = seed, rank, world

    def of_process(self, rank: int, world: int) -> Self:
        """Return the same batches as one of `world` processes reads them."""
        feed = copy.copy(self)
        Feed.__init__(feed, self.seed, rank, world)
        return feed

    @abstractmethod
    def batches_per_epoch(self, epoch: int) -> int:
        """Return the number of batches, at least 1; it may vary between epochs."""

    @abstractmethod
    def batch(self, position: Position) -> BatchT:
        """Return the rows of a batch that belong to this process, or the first row of another if it is idle."""

    def idle(self, position: Position) -> bool:
        """Return whether a batch has no row for this process."""
        return False

    @abstractmethod
    def tokens(self, position: Position) -> int:
        """Return the number of target tokens in the batch, over all processes."""

    @final
    def next(self, position: Position) -> Position:
        epoch, index = position
        return Position(epoch, index + 1) if index + 1 < self.batches_per_epoch(epoch) else Position(epoch + 1, 0)

    def _share(self, rows: int) -> Integers:
        return np.arange(self.rank if self.rank < rows else 0, rows, self.world)


class _FixedRows(Feed[BatchT]):
    """A feed whose batches all have the same number of rows, at least one for each process."""

    rows: int

    @final
    def of_process(self, rank: int, world: int) -> Self:
        feed = super().of_process(rank, world)
        feed._require_rows()
        return feed

    @final
    def _require_rows(self) -> None:
        if self.rows < self.world:
            raise DataError(
                f"a batch has {self.rows} rows, too few for {self.world} processes; start at most {self.rows}, raise "
                "train.batch_tokens, or add text"
            )


@final
class Windows(_FixedRows[Batch]):
    """Every window of `length` tokens once per epoch, in random order; the offset of the windows varies by epoch.

    Incomplete windows and batches are dropped, less than one of each per epoch. If a text has fewer windows than
    `rows`, a batch contains all of them.
    """

    def __init__(self, corpus: Corpus, rows: int, length: int, seed: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(seed, rank, world)
        self.corpus = corpus
        require_tokens(corpus, length, length, "model.context")
        self.length = length
        self._phases = min(length, len(corpus) - length + 1)  # every offset leaves room for a window
        self.rows = min(rows, (len(corpus) - self._phases + 1) // length)
        self._require_rows()

    def _phase(self, epoch: int) -> int:
        return draw(self.seed, epoch, "window phase") % self._phases

    def _windows(self, epoch: int) -> int:
        return (len(self.corpus) - self._phase(epoch)) // self.length

    def batches_per_epoch(self, epoch: int) -> int:
        return self._windows(epoch) // self.rows

    def tokens(self, position: Position) -> int:
        return self.rows * self.length

    def batch(self, position: Position) -> Batch:
        epoch, index = position
        key = draw(self.seed, epoch, "window order")
        windows = permute(index * self.rows + self._share(self.rows), self._windows(epoch), key)
        starts = self._phase(epoch) + windows * self.length
        return Batch(Sequences.full(_tensor(self.corpus.tokens[starts[:, None] + np.arange(self.length)])))


@final
class Lanes(_FixedRows[Segment]):
    """The stream as `rows` parallel lanes; each batch advances them by about `length` tokens.

    Every lane reads pieces of the stream, of at least `contiguous` tokens if there are so many, in an order that is
    random in every epoch, with a fresh state at the start of each. If it read on to the end of the epoch, a training
    that is shorter than an epoch would see a few neighbourhoods of the text, and not the variety of the whole.

    The stream is circular and starts at a different token in every epoch. The segments of a piece are equally long, to
    a token, and at most half as long again as `length`: a short one at the end would be a step on few tokens. Fewer
    tokens than there are pieces are dropped. A short text has fewer lanes, so that each contains a segment.
    """

    def __init__(
        self,
        corpus: Corpus,
        rows: int,
        length: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        *,
        contiguous: int,
    ) -> None:
        super().__init__(seed, rank, world)
        self.corpus = corpus
        require_tokens(corpus, length, length + 1, "train.segment")
        self.length = length
        self.rows = min(rows, len(corpus) // length)
        self._require_rows()
        self._turns = max(1, len(corpus) // self.rows // contiguous)  # pieces that each lane reads in an epoch
        self._piece = len(corpus) // (self.rows * self._turns)  # targets in a piece

    @property
    def _segments(self) -> int:
        """Batches that read one piece of each lane."""
        return max(1, (self._piece + self.length // 2) // self.length)

    def batches_per_epoch(self, epoch: int) -> int:
        return self._turns * self._segments

    def tokens(self, position: Position) -> int:
        segment = position.index % self._segments
        return self.rows * (self._begin(segment + 1) - self._begin(segment))

    def _begin(self, segment: int) -> int:
        """The first token of a segment, in its piece."""
        return segment * self._piece // self._segments

    def batch(self, position: Position) -> Segment:
        epoch, index = position
        turn, segment = divmod(index, self._segments)
        lanes = turn * self.rows + self._share(self.rows)
        pieces = permute(lanes, self.rows * self._turns, draw(self.seed, epoch, "lane order"))
        starts = draw(self.seed, epoch, "lane phase") % len(self.corpus) + pieces * self._piece
        offsets = np.arange(self._begin(segment), self._begin(segment + 1) + 1)
        ids = _tensor(self.corpus.tokens[(starts[:, None] + offsets) % len(self.corpus)])  # (B, K + 1)
        return Segment(ids[:, :-1], ids[:, 1:], fresh=segment == 0)


class _Plan(NamedTuple):
    epoch: int
    order: Integers  # rows, in the order of the batches
    starts: Integers  # (batches + 1,) start of each batch in `order`
    shuffled: Integers  # (batches,) batch at each index


class _ByLength(Feed[Batch]):
    """Every row once per epoch, in batches of at most `batch_tokens` tokens including padding.

    A row longer than `batch_tokens` is a batch of its own. With several processes, one may get no row of a batch.
    """

    def __init__(self, lengths: Integers, batch_tokens: int, seed: int, rank: int, world: int) -> None:
        super().__init__(seed, rank, world)
        self.batch_tokens = batch_tokens
        self._lengths_of_rows = lengths
        self._plan: _Plan | None = None  # of the last epoch

    @final
    def batches_per_epoch(self, epoch: int) -> int:
        return len(self._planned(epoch).shuffled)

    @final
    def batch(self, position: Position) -> Batch:
        rows = self._rows(position)
        return self._read(rows, self._share(len(rows)))

    @final
    def idle(self, position: Position) -> bool:
        return self.rank >= len(self._rows(position))

    @abstractmethod
    def _read(self, rows: Integers, own: Integers) -> Batch:
        """Return a batch of rows[own], as wide as one of all rows: random numbers for it do not depend on `own`."""

    @final
    def _rows(self, position: Position) -> Integers:
        plan = self._planned(position.epoch)
        batch = plan.shuffled[position.index]
        return plan.order[plan.starts[batch] : plan.starts[batch + 1]]

    def _planned(self, epoch: int) -> _Plan:
        """Shuffle the rows, sort them by length within pools of many batches, cut into batches, shuffle these."""
        if self._plan is None or self._plan.epoch != epoch:
            count = len(self._lengths_of_rows)
            order = permute(np.arange(count), count, draw(self.seed, epoch, "document order"))
            pool = max(1, int(POOL * self.batch_tokens / self._lengths_of_rows.mean()))
            order = order[np.lexsort((-self._lengths_of_rows[order], np.arange(count) // pool))]
            starts = cut_batches(self._lengths_of_rows[order], pool, self.batch_tokens)
            batches = len(starts) - 1
            shuffled = permute(np.arange(batches), batches, draw(self.seed, epoch, "batch order"))
            self._plan = _Plan(epoch, order, starts, shuffled)
        return self._plan


@final
class Documents(_ByLength):
    """Every document once per epoch. One longer than `longest` becomes several rows, each starting from BOS."""

    def __init__(
        self, corpus: Corpus, batch_tokens: int, longest: int | None, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        if corpus.offsets is None:
            raise DataError("the data is a stream without documents; set data.unit=documents")
        self.corpus = corpus
        self._starts, self._lengths = cut_documents(np.asarray(corpus.offsets), longest)
        super().__init__(self._lengths, batch_tokens, seed, rank, world)

    def tokens(self, position: Position) -> int:
        return int(self._lengths[self._rows(position)].sum())

    def _read(self, rows: Integers, own: Integers) -> Batch:
        return Batch(_padded(self.corpus, self._starts[rows], self._lengths[rows], own))


@final
class Pairs(_ByLength):
    """Every pair once per epoch, in batches whose longer side has at most `batch_tokens` tokens including padding.

    Pairs with a side longer than `longest` (limits for source and target) are dropped, since a truncated translation
    would not match its source; `left_out` counts them.
    """

    def __init__(
        self,
        corpus: PairedCorpus,
        batch_tokens: int,
        seed: int,
        longest: tuple[int | None, int | None] = (None, None),
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.corpus = corpus
        sides = [np.asarray(side.offsets) for side in (corpus.source, corpus.target)]
        lengths = np.diff(sides)  # (2, pairs)
        fitting = np.ones(corpus.pairs, dtype=np.bool_)
        for side, limit in zip(lengths, longest, strict=True):
            if limit is not None:
                fitting &= side <= limit
        self.left_out = int(np.count_nonzero(~fitting))
        if not fitting.any():
            raise DataError(f"all {corpus.pairs:,} pairs are longer than the context of the model; raise model.context")
        self._sources, self._targets = (offsets[:-1][fitting] for offsets in sides)
        self._source_lengths, self._target_lengths = lengths[:, fitting]
        super().__init__(lengths[:, fitting].max(0), batch_tokens, seed, rank, world)

    def tokens(self, position: Position) -> int:
        return int(self._target_lengths[self._rows(position)].sum())

    def _read(self, rows: Integers, own: Integers) -> Batch:
        return Batch(
            _padded(self.corpus.target, self._targets[rows], self._target_lengths[rows], own),
            _padded(self.corpus.source, self._sources[rows], self._source_lengths[rows], own),
        )


class Chunk(NamedTuple):
    """Consecutive tokens of a text."""

    ids: Integers  # (N,)
    noise: npt.NDArray[np.float64]  # (N, C) random numbers from [0, 1)


@final
class Chunks(Feed[Chunk]):
    """The text in order, `size` tokens at a time, so that memory is bounded however large the text is."""

    def __init__(self, corpus: Corpus, size: int, noise_width: int, seed: int) -> None:
        super().__init__(seed, rank=0, world=1)
        self.corpus, self.size, self.noise_width = corpus, size, noise_width

    def batches_per_epoch(self, epoch: int) -> int:
        return -(-len(self.corpus) // self.size)

    def batch(self, position: Position) -> Chunk:
        begin = position.index * self.size
        ids = self.corpus.tokens[begin : begin + self.size].astype(np.int64)
        return Chunk(ids, np.random.default_rng((self.seed, *position)).random((len(ids), self.noise_width)))

    def tokens(self, position: Position) -> int:
        return min(self.size, len(self.corpus) - position.index * self.size)


def _padded(corpus: Corpus, starts: Integers, lengths: Integers, own: Integers) -> Sequences:
    """Return some spans of a corpus as rows, padded to the longest of all."""
    columns = np.arange(lengths.max(initial=1))
    starts, lengths = starts[own], lengths[own]
    real = columns < lengths[:, None]
    positions = np.where(real, starts[:, None] + columns, 0)
    return Sequences(_tensor(np.where(real, corpus.tokens[positions], 0)), torch.from_numpy(lengths))


def by_length(lengths: Sequence[int], rows: int, tokens: int) -> Iterator[list[int]]:
    """Yield indices in groups of similar length, the shortest first.

    A group has at most `rows` indices and at most `tokens` tokens including padding, or is a single longer row.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if group and (len(group) == rows or (len(group) + 1) * lengths[index] > tokens):
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def cut_documents(offsets: Integers, longest: int | None) -> tuple[Integers, Integers]:
    """Return starts and lengths of the documents; one longer than `longest` is split into pieces of that length."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    if longest is None:
        return starts, lengths
    pieces = -(-lengths // longest)
    before = np.repeat(np.cumsum(pieces) - pieces, pieces)  # pieces of earlier documents
    skipped = (np.arange(pieces.sum()) - before) * longest
    return np.repeat(starts, pieces) + skipped, np.minimum(np.repeat(lengths, pieces) - skipped, longest)


def cut_batches(lengths: Integers, pool: int, batch_tokens: int) -> Integers:
    """Return the start of each batch, and the end: rows times the longest row fits the budget, or it is one row.

    Lengths decrease within each pool of `pool` rows, so the first row of a batch is its longest. All pools are cut in
    parallel, one batch of each per iteration.
    """
    rows = np.maximum(1, batch_tokens // lengths)  # in a batch that starts here
    here = np.arange(0, len(lengths), pool)
    ends = np.minimum(here + pool, len(lengths))
    starts = []
    while len(here):
        starts.append(here)
        here = here + rows[here]
        here, ends = here[here < ends], ends[here < ends]
    return np.append(np.sort(np.concatenate(starts)), len(lengths))


def require_tokens(corpus: Corpus, length: int, needed: int, setting: str) -> None:
    """Raise DataError if a text does not fill a single row."""
    if len(corpus) < needed:
        shorter = len(corpus) - (needed - length)
        remedy = f"set {setting} to at most {shorter}" if shorter > 0 else "give more text"
        raise DataError(f"the text has {len(corpus)} tokens, but a row needs {needed}; {remedy}")


def _tensor(tokens: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(tokens.astype(np.int64))
