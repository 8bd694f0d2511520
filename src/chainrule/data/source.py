"""Sources of text and of pairs of texts: they can be read repeatedly, in pieces of bounded size."""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, final

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.splits import Part, Span, ValidFrom, hold_out
from chainrule.data.workers import results
from chainrule.errors import DataError

if TYPE_CHECKING:
    from chainrule.types import Progress

Unit = Literal["stream", "documents"]
Split = Literal["validation", "test"]

DOCUMENTS_PER_CALL = 1024  # between two calls of a progress callback
PIECE = 1 << 20  # approximate characters in a piece of a stream
LONGEST_LINE = 8 << 20  # characters; a longer line of a stream is split
SPREAD_BLOCKS, SPREAD_CHARACTERS = 50, 1000  # of a stream: at most so many blocks, each of at least so many characters


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Normalisation of the text before tokenization. It changes the bytes that are scored."""

    unicode: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    squeeze_spaces: bool = False
    strip_ends: bool = False

    def __call__(self, text: str) -> str:
        if self.unicode != "none":
            text = unicodedata.normalize(self.unicode, text)
        if self.squeeze_spaces:
            text = _SPACES.sub(" ", text)
        if self.strip_ends:
            text = "\n".join([line.strip() for line in text.split("\n")])
        return text


_SPACES = re.compile(r"[ \t]+")


@dataclass(frozen=True, kw_only=True)
class TextSource(ABC):
    """An opened data spec: `pieces` reads its text, `identity` changes whenever the text does."""

    spec: str
    unit: Unit
    normalisation: Normalisation

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """Return plain values that change whenever the text does, if possible without reading all of it."""

    @abstractmethod
    def origins(self) -> frozenset[str]:
        """Return the names of the underlying files or data sets, to detect overlap of two sources."""

    @abstractmethod
    def stream(self) -> Iterator[str]:
        """Yield the text as one stream, in chunks of any size."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Yield the documents."""

    def held_out(self, split: Split) -> TextSource | None:
        """Return the validation or test split of this data set, if it has one; its spec can be opened."""
        return None

    def shards(self) -> Sequence[TextSource]:
        """Return parts that join to the text and can be read independently; this source itself if it is small."""
        return (self,)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the data, one line each."""
        return ()

    @final
    def description(self) -> tuple[object, ...]:
        """Return the identity and everything that determines how the text is read."""
        form = self.normalisation
        return (*self.identity(), self.unit, form.unicode, form.squeeze_spaces, form.strip_ends)

    @final
    def pieces(self, part: Part | None = None) -> Iterator[str]:
        """Yield normalised, non-empty text: documents, or a stream split at line starts (see `cut`)."""
        pieces = self.any_pieces(part)
        piece = next(pieces, None)
        if piece is None:
            raise DataError(f"{self.spec!r} contains no text{'' if part is None else ' in this part'}; check the data")
        yield piece
        yield from pieces

    @final
    def any_pieces(self, part: Part | None = None) -> Iterator[str]:
        """As `pieces`, but there may be none."""
        return self._stream_pieces(part) if self.unit == "stream" else self._document_pieces(part)

    def _stream_pieces(self, part: Part | None) -> Iterator[str]:
        pieces = (text for text in map(self.normalisation, cut(self.stream())) if text)
        return pieces if part is None else clip(pieces, part)

    def _document_pieces(self, part: Part | None) -> Iterator[str]:
        documents = map(self.normalisation, self.documents())
        if self.normalisation.strip_ends:
            documents = map(str.strip, documents)
        pieces = (text for text in documents if text)
        return pieces if part is None else part.choose(pieces)


def normalisation_of(config: DataConfig) -> Normalisation:
    return Normalisation(unicode=config.unicode, squeeze_spaces=config.squeeze_spaces, strip_ends=config.strip_ends)


def cut(chunks: Iterable[str], size: int = PIECE, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Yield the text in pieces of about `size` characters that end where a line starts.

    Tokenizers and Unicode normalisation process one piece at a time, so pieces are cut where neither depends on the
    context: after a newline that is followed by a character other than white space. If `longest` characters contain
    no such position, the cut is at the last newline, or anywhere if there is none.
    """
    buffered: list[str] = []
    length = line_start = newline = 0  # the last positions in the buffer after a newline, with and without such a line
    for chunk in _at_most(size, chunks):
        window = buffered[-1][-1] + chunk if length else chunk
        begin = length + len(chunk) - len(window)
        line_start = begin + found if (found := _last_line_start(window)) else line_start
        newline = begin + found if (found := window.rfind("\n") + 1) else newline
        buffered.append(chunk)
        length += len(chunk)
        if length < size or not (end := line_start or (length >= longest and (newline or length))):
            continue
        text = "".join(buffered)
        yield text[:end]
        buffered, length = ([text[end:]], length - end) if end < length else ([], 0)
        line_start, newline = 0, max(0, newline - end)
    if length:
        yield "".join(buffered)


def _at_most(size: int, chunks: Iterable[str]) -> Iterator[str]:
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _last_line_start(text: str) -> int:
    newline = len(text) - 1  # the character after a final newline is not known
    while (newline := text.rfind("\n", 0, newline)) >= 0:
        if not text[newline + 1].isspace():
            return newline + 1
    return 0


def clip(pieces: Iterable[str], part: Part) -> Iterator[str]:
    """Yield the characters of a part of the joined pieces, and stop reading after the last."""
    position = 0
    spans = deque(part.spans)
    for piece in pieces:
        end = position + len(piece)
        while spans and spans[0].start < end:
            if clipped := piece[max(0, spans[0].start - position) : spans[0].end - position]:
                yield clipped
            if spans[0].end > end:
                break
            spans.popleft()
        if not spans:
            return
        position = end


# Counting and splitting


def with_progress(pieces: Iterable[str], unit: Unit, total: int, progress: Progress) -> Iterator[str]:
    """Yield the pieces, and call `progress` regularly with the amount done."""
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece) if unit == "stream" else 1
        if unit == "stream" or done % DOCUMENTS_PER_CALL == 0:
            progress(done, total)
    progress(done, total)


def count(source: TextSource, *, cache: Path | None = None, progress: Progress | None = None) -> int:
    """Return the number of characters of a stream, or of documents; cached after the first pass over the text."""
    total = sum(sizes(source.shards(), cache=cache, progress=progress))
    if not total:
        raise DataError(f"{source.spec!r} contains no text; check the data")
    return total


def sizes(shards: Sequence[TextSource], *, cache: Path | None = None, progress: Progress | None = None) -> list[int]:
    """Return the number of characters or documents of each shard, counted by several workers."""
    root = cache or cache_root()
    if len(shards) == 1:
        return [_size(shards[0], root, progress)]
    found = [_known_size(_size_entry(shard, root)) for shard in shards]
    missing = [index for index, size in enumerate(found) if size is None]
    for number, size in results(_size, [(shards[index], root) for index in missing]):
        found[missing[number]] = size
        if progress is not None:
            progress(sum(size or 0 for size in found), 0)
    return [size or 0 for size in found]


def _size_entry(source: TextSource, cache: Path) -> Path:
    return cache / fingerprint("count", source.description())


def _known_size(entry: Path) -> int | None:
    return find(entry, lambda folder: int((folder / "count.txt").read_text(encoding="ascii")))


def _size(source: TextSource, cache: Path, progress: Progress | None = None) -> int:
    entry = _size_entry(source, cache)
    if (known := _known_size(entry)) is not None:
        return known
    pieces = source.any_pieces()
    if progress is not None:
        pieces = with_progress(pieces, source.unit, 0, progress)
    total = sum(map(len, pieces)) if source.unit == "stream" else sum(1 for _ in pieces)
    with building(entry) as folder:
        (folder / "count.txt").write_text(str(total), encoding="ascii")
    return total


def split(
    source: TextSource,
    fractions: Mapping[str, float],
    valid_from: ValidFrom = "end",
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Part]:
    """Split off fractions of a source, in characters of a stream or in documents; see `splits.hold_out`.

    The blocks of a spread stream begin at line starts, unless lines are longer than the blocks.
    """
    total = count(source, cache=cache, progress=progress)
    if source.unit == "documents":
        return hold_out(total, fractions, valid_from, what="documents", spec=source.spec)
    parts = hold_out(
        total,
        fractions,
        valid_from,
        what="characters",
        spec=source.spec,
        block=SPREAD_CHARACTERS,
        most=SPREAD_BLOCKS,
    )
    return parts if valid_from != "spread" else _at_line_starts(source, parts, cache)


def _at_line_starts(source: TextSource, parts: Mapping[str, Part], cache: Path | None) -> dict[str, Part]:
    """Move the edges of parts to the next line start; cached after a pass over the text."""
    edges = sorted({edge for part in parts.values() for span in part.spans for edge in span})
    entry = (cache or cache_root()) / fingerprint("lines", source.description(), edges)
    moved = find(entry, lambda folder: json.loads((folder / "edges.json").read_text(encoding="ascii")))
    if moved is None:
        moved = [edges[0], *_line_starts(source.pieces(), edges[1:]), edges[-1]]
        with building(entry) as folder:
            (folder / "edges.json").write_text(json.dumps(moved), encoding="ascii")
    new = dict(zip(edges, moved, strict=True))
    return {name: Part(tuple(Span(new[start], new[end]) for start, end in part.spans)) for name, part in parts.items()}


def _line_starts(pieces: Iterable[str], edges: Sequence[int]) -> Iterator[int]:
    """Yield, for each edge but the last, the first line start at or after it, or itself if that is past the next."""
    waiting = deque(pairwise(edges))
    position = 0
    for piece in pieces:
        while waiting and waiting[0][0] <= position + len(piece):
            edge, following = waiting.popleft()
            start = position + piece.find("\n", max(0, edge - 1 - position)) + 1
            yield start if edge <= start < following else edge
        position += len(piece)


# Sources of pairs


class Pair(NamedTuple):
    """A source and its translation, or one attribute of both, such as their languages."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class PairSource(ABC):
    """An opened spec of parallel data."""

    spec: str  # as reports name it

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """Return plain values that change whenever the pairs do, if possible without reading them."""

    @abstractmethod
    def origins(self) -> frozenset[str]:
        """Return the names of the underlying files or data sets, to detect overlap of two sources."""

    @abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """Yield every pair, including those with an empty side."""

    @property
    def languages(self) -> Pair:
        """The language codes of both sides; empty if not known."""
        return Pair("", "")

    def held_out(self, split: Split) -> PairSource | None:
        """Return the validation or test split of this data set, if it has one."""
        return None
