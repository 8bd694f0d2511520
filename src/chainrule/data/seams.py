"""The tokens where two pieces of a text meet that are encoded one by one.

A tokenizer need not give the tokens of the whole text there, even between two lines: SentencePiece puts a space before
every text, and the pattern of GPT-2 divides white space by what follows it. So the end of one piece and the start of
the next are encoded once more together, which gives the tokens at the seam.
"""

from __future__ import annotations

from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.tokenizers.base import Ids, Tokenizer

CONTEXT = 1 << 10  # characters on each side of a seam; no token depends on a text that is farther away
HELD = 1 << 10  # last tokens that are not yet written, since a seam may replace some of them

Tokens = npt.NDArray[Any]


class Seam(NamedTuple):
    """What replaces the last tokens of a piece and the first of the next."""

    dropped: Ids  # of the first piece
    ids: Ids
    skipped: Ids  # of the second


def seam(tokenizer: Tokenizer, before: str, after: str) -> Seam:
    """Compare the tokens of two texts with those of both together."""
    first, second, both = (tokenizer.encode(text) for text in (before, after, before + after))
    kept = _agreeing(first, both)
    rest = _agreeing(second[::-1], both[kept:][::-1])
    return Seam(first[kept:], both[kept : len(both) - rest], second[: len(second) - rest])


def _agreeing(one: Ids, other: Ids) -> int:
    """The number of first tokens that are equal."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length


class SeamedTokens:
    """Writes the tokens of pieces of a text as if all had been encoded together."""

    def __init__(self, file: IO[bytes], kind: npt.DTypeLike, tokenizer: Tokenizer) -> None:
        self.file, self.kind, self.tokenizer = file, np.dtype(kind), tokenizer
        self.length = 0  # tokens so far
        self.unknown = 0  # out-of-vocabulary tokens more than in the pieces
        self._held: Tokens = np.zeros(0, self.kind)
        self._last = ""  # end of the text so far

    def add(self, ids: Tokens, start: str, end: str) -> None:
        """Add a piece, which starts and ends with these texts of at most CONTEXT characters, or is one of them."""
        if self._last:
            ids = self._after_seam(ids, seam(self.tokenizer, self._last, start))
        self._last = (self._last + end)[-CONTEXT:]
        self.length += len(ids)
        if len(ids) < HELD:
            ids = np.concatenate([self._held, ids.astype(self.kind)])
        else:
            self._write(self._held)
        edge = max(0, len(ids) - HELD)
        self._write(ids[:edge])
        self._held = ids[edge:].astype(self.kind)

    def finish(self) -> None:
        self._write(self._held)
        self._held = self._held[:0]

    def _after_seam(self, ids: Tokens, found: Seam) -> Tokens:
        dropped, skipped = len(found.dropped), len(found.skipped)
        held = self._held[len(self._held) - dropped :]
        if not np.array_equal(held, found.dropped) or not np.array_equal(ids[:skipped], found.skipped):
            return ids  # tokens depend on more than CONTEXT characters
        self._held = np.concatenate([self._held[: len(self._held) - dropped], found.ids.astype(self.kind)])
        self.length += len(found.ids) - dropped
        if (unknown := self.tokenizer.unknown) is not None:
            count = [int(np.count_nonzero(part == unknown)) for part in found]
            self.unknown += count[1] - count[0] - count[2]
        return ids[skipped:]

    def _write(self, ids: Tokens) -> None:
        if len(ids):
            append(self.file, ids, self.kind)


def append(file: IO[bytes], values: npt.NDArray[Any], kind: np.dtype[Any]) -> None:
    """Write numbers at the end of a file, as `kind`."""
    file.write(np.ascontiguousarray(values, kind).data)  # ndarray.tofile does not report a full disk
