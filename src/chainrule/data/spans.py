"""Span corruption, the pre-training task of T5 (Raffel et al., 2020).

    text      Thank you for inviting me to your party last week
    source    Thank you <0> me to your party <1> week EOS
    target    <0> for inviting <1> last EOS

Each removed span is replaced by a sentinel in the source and follows the same sentinel in the target; both end with
EOS. Spans are never adjacent. Unlike in the paper, a span may contain the first or the last token of a text. The choice
of spans depends only on a key, so that a resumed run equals an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from chainrule.data.batching import Feed, Position
from chainrule.data.permutation import draw, numbers
from chainrule.errors import DataError
from chainrule.types import Batch, Sequences

Ids = npt.NDArray[np.int64]


class CorruptedPair(NamedTuple):
    """A text with gaps, and the removed spans."""

    source: Ids
    target: Ids


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Settings and functions of span corruption."""

    sentinels: range  # ids, in the order of the gaps
    eos: int
    rate: float = 0.15  # fraction of tokens removed
    mean: float = 3.0  # mean tokens per span

    def counts(self, length: int) -> tuple[int, int]:
        """Return the numbers of tokens and spans to remove from a text of `length` tokens; 0 for an empty text."""
        cut = min(length, max(1, round(self.rate * length)))
        spans = max(1, round(cut / self.mean)) if cut else 0
        return cut, min(spans, len(self.sentinels), length - cut + 1)

    def spans(self, length: int, key: int) -> list[slice]:
        """Return the spans that a key selects in a text of `length` tokens, from left to right."""
        cut, count = self.counts(length)
        if not count:
            return []
        inside = _parts(cut, count, key)
        outside = _parts(length - cut + 2, count + 1, ~key)  # the first and the last part are one too long
        starts = np.cumsum(outside[:-1]) - 1 + np.cumsum(inside) - inside
        return [slice(start, start + size) for start, size in zip(starts.tolist(), inside.tolist(), strict=True)]

    def corrupt(self, text: npt.ArrayLike, key: int) -> CorruptedPair:
        """Remove spans from a text; an EOS at its end is never removed."""
        ids = np.asarray(text, dtype=np.int64)
        if len(ids) and ids[-1] == self.eos:
            ids = ids[:-1]
        spans = self.spans(len(ids), key)
        kept = [ids[begin:end] for begin, end in _between(spans, len(ids))]
        return CorruptedPair(self.source(kept), self.target([ids[span] for span in spans]))

    def source(self, parts: Sequence[npt.ArrayLike]) -> Ids:
        """Join the parts of a text with a sentinel between each two."""
        if len(parts) - 1 > len(self.sentinels):
            raise DataError(
                f"the text has {len(parts) - 1} gaps, and the model has {len(self.sentinels)} sentinels; use fewer, "
                "or train with a larger model.sentinels"
            )
        gaps = ([sentinel] for sentinel in self.sentinels)
        pieces = [piece for part, gap in zip(parts[:-1], gaps, strict=False) for piece in (part, gap)]
        return _joined([*pieces, parts[-1], [self.eos]])

    def target(self, spans: Sequence[npt.ArrayLike]) -> Ids:
        """Return the removed spans, each after its sentinel."""
        pieces = [piece for sentinel, span in zip(self.sentinels, spans, strict=False) for piece in ([sentinel], span)]
        return _joined([*pieces, [self.eos]])

    def restore(self, pair: CorruptedPair) -> Ids:
        """Return the original text."""
        first, *parts = self._cut_up(pair.source)
        pieces = [piece for span, part in zip(self.spans_of(pair), parts, strict=True) for piece in (span, part)]
        return _joined([first, *pieces])

    def spans_of(self, pair: CorruptedPair) -> list[Ids]:
        """Return the removed spans."""
        return self._cut_up(pair.target)[1:]

    def _cut_up(self, ids: Ids) -> list[Ids]:
        """Split ids at sentinels, without EOS."""
        ids = ids[:-1] if len(ids) and ids[-1] == self.eos else ids
        positions = np.flatnonzero((ids >= self.sentinels.start) & (ids < self.sentinels.stop))
        edges = zip([0, *(positions + 1)], [*positions, len(ids)], strict=True)
        return [ids[begin:end] for begin, end in edges]


def _parts(total: int, count: int, key: int) -> Ids:
    """Return a uniformly random composition of `total` into `count` positive integers."""
    cuts = np.sort(numbers(total - 1, key).argsort()[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def _between(spans: Sequence[slice], length: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the parts between spans."""
    return zip([0, *(span.stop for span in spans)], [*(span.start for span in spans), length], strict=True)


def _joined(pieces: Sequence[npt.ArrayLike]) -> Ids:
    return np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces]).astype(np.int64)


@final
class Corrupted(Feed[Batch]):
    """The texts of another feed, corrupted: the text with gaps is the source, the removed spans are the target."""

    def __init__(self, texts: Feed[Batch], corruption: Corruption, seed: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(seed, rank, world)
        self.texts = texts  # of a single process: rows are distributed here
        self.corruption = corruption

    def batches_per_epoch(self, epoch: int) -> int:
        return self.texts.batches_per_epoch(epoch)

    def idle(self, position: Position) -> bool:
        return self.rank >= len(self.texts.batch(position).target.ids)

    def tokens(self, position: Position) -> int:
        rows = self.texts.batch(position).target
        return sum(len(self._pair(rows, position, row).target) for row in range(len(rows.ids)))

    def batch(self, position: Position) -> Batch:
        rows = self.texts.batch(position).target
        pairs = [self._pair(rows, position, row) for row in self._share(len(rows.ids)).tolist()]
        return Batch(Sequences.pack([pair.target for pair in pairs]), Sequences.pack([pair.source for pair in pairs]))

    def _pair(self, rows: Sequences, position: Position, row: int) -> CorruptedPair:
        text = rows.ids[row, : int(rows.lengths[row])]
        key = draw(self.seed, position.epoch, f"spans of row {row} in batch {position.index}")
        return self.corruption.corrupt(text.numpy(), key)
