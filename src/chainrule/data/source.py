"""What every source of text can do: be read again and again, in pieces of bounded size."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, final

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.errors import DataError
from chainrule.types import Progress

Unit = Literal["stream", "documents"]

DOCUMENTS_PER_CALL = 1024  # between two calls of a progress callback
PIECE = 1 << 20  # characters in one piece of a stream, about
LONGEST_LINE = 8 << 20  # characters; a longer line of a stream is cut anyway


class Part(NamedTuple):
    """A stretch of a source: characters of a stream, or else documents."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """Changes made to the text before anything else sees it. They change the bytes that are scored."""

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
    """A data spec that has been understood: `pieces` reads it, `identity` says when it has changed."""

    spec: str
    unit: Unit
    normalisation: Normalisation

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """Plain values that change whenever the text does, found without reading all of it if possible."""

    @abstractmethod
    def origins(self) -> frozenset[str]:
        """Names of what the text comes from, by which two sources can be seen to overlap."""

    @abstractmethod
    def stream(self) -> Iterator[str]:
        """The whole as one text, in chunks of any size."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """The whole as separate texts."""

    def validation(self) -> TextSource | None:
        """The validation data that comes with this training data, if it does."""
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about how the spec was understood."""
        return ()

    @final
    def description(self) -> tuple[object, ...]:
        """The identity together with all that decides how the text is read."""
        form = self.normalisation
        return (*self.identity(), self.unit, form.unicode, form.squeeze_spaces, form.strip_ends)

    @final
    def pieces(self, part: Part | None = None) -> Iterator[str]:
        """Normalised text, none of it empty: documents, or a stream cut where lines start (see `cut`)."""
        pieces = self._stream_pieces(part) if self.unit == "stream" else self._document_pieces(part)
        piece = next(pieces, None)
        if piece is None:
            raise DataError(f"{self.spec!r} holds no text{'' if part is None else ' in this part'}; check the data")
        yield piece
        yield from pieces

    def _stream_pieces(self, part: Part | None) -> Iterator[str]:
        pieces = (text for text in map(self.normalisation, cut(self.stream())) if text)
        return pieces if part is None else clip(pieces, part)

    def _document_pieces(self, part: Part | None) -> Iterator[str]:
        documents = map(self.normalisation, self.documents())
        if self.normalisation.strip_ends:
            documents = map(str.strip, documents)
        pieces = (text for text in documents if text)
        return pieces if part is None else islice(pieces, part.start, part.end)


def normalisation_of(config: DataConfig) -> Normalisation:
    return Normalisation(unicode=config.unicode, squeeze_spaces=config.squeeze_spaces, strip_ends=config.strip_ends)


def cut(chunks: Iterable[str], size: int = PIECE, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The same text in pieces of about `size` characters that end where a line starts.

    Tokenizers and normal forms see one piece at a time, so pieces are cut where neither reaches across: right after
    a newline and before a character that is not white space. Only where `longest` characters offer no such place,
    the cut is made at the last newline, or anywhere if there is none.
    """
    held: list[str] = []
    length = 0
    for chunk in _at_most(size, chunks):
        held.append(chunk)
        length += len(chunk)
        if length < size:
            continue
        text = "".join(held)
        end = _last_line_start(text)
        if end == 0 and length >= longest:
            end = text.rfind("\n") + 1 or length
        if end:
            yield text[:end]
        held, length = [text[end:]], length - end
    if length:
        yield "".join(held)


def _at_most(size: int, chunks: Iterable[str]) -> Iterator[str]:
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


def _last_line_start(text: str) -> int:
    newline = len(text) - 1  # a newline at the very end says nothing about the character after it
    while (newline := text.rfind("\n", 0, newline)) >= 0:
        if not text[newline + 1].isspace():
            return newline + 1
    return 0


def clip(pieces: Iterable[str], part: Part) -> Iterator[str]:
    """The characters from `part.start` to `part.end` of the joined pieces; reading stops at the end."""
    position = 0
    for piece in pieces:
        clipped = piece[max(0, part.start - position) : part.end - position]
        if clipped:
            yield clipped
        position += len(piece)
        if position >= part.end:
            return


# Counting and splitting


def watched(pieces: Iterable[str], unit: Unit, total: int, progress: Progress) -> Iterator[str]:
    """The same pieces; every now and then `progress` hears how many have gone by."""
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece) if unit == "stream" else 1
        if unit == "stream" or done % DOCUMENTS_PER_CALL == 0:
            progress(done, total)
    progress(done, total)


def count(source: TextSource, *, cache: Path | None = None, progress: Progress | None = None) -> int:
    """Characters of a stream, or else documents: one pass over the text, the first time."""
    entry = (cache or cache_root()) / fingerprint("count", source.description())
    known = find(entry, lambda folder: int((folder / "count.txt").read_text(encoding="ascii")))
    if known is not None:
        return known
    pieces = source.pieces()
    if progress is not None:
        pieces = watched(pieces, source.unit, 0, progress)
    total = sum(map(len, pieces)) if source.unit == "stream" else sum(1 for _ in pieces)
    with building(entry) as folder:
        (folder / "count.txt").write_text(str(total), encoding="ascii")
    return total


def split(
    source: TextSource,
    *fractions: float,
    names: Sequence[str] = ("validation",),
    at_start: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> list[Part]:
    """Cut shares from a source, one after the other: what is left, then the parts, the last one cut first.

    Each fraction is a share of what the ones before it have left, by characters of a stream or else by documents. It
    is taken from the end, or from the start for the one of that name. `names` say what the parts are for.
    """
    first, last = 0, count(source, cache=cache, progress=progress)
    parts: list[Part] = []
    for fraction, name in zip(fractions, names, strict=True):
        size = last - first
        kept = int(size * (1 - Fraction(str(fraction))))  # exact, where 1 - 0.9 in floating point is less than 0.1
        if not 0 < kept < size:
            what = "characters" if source.unit == "stream" else "documents"
            raise DataError(
                f"{source.spec!r} has {size} {what}: too few to cut off {fraction:g} for {name}; give {name} data"
            )
        if name == at_start:
            parts.insert(0, Part(first, last - kept))
            first = last - kept
        else:
            parts.insert(0, Part(first + kept, last))
            last = first + kept
    return [Part(first, last), *parts]


# Sources of pairs


Split = Literal["validation", "test"]


class Pair(NamedTuple):
    """A source and its translation, or anything else that both of them have one of."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class PairSource(ABC):
    """A spec of parallel data that has been understood."""

    spec: str  # what a reader knows it by

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """Plain values that change whenever the pairs do, found without reading them if possible."""

    @abstractmethod
    def origins(self) -> frozenset[str]:
        """Names of what the pairs come from, by which two sources can be seen to overlap."""

    @abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """Every pair as it stands, those with an empty side too."""

    @property
    def languages(self) -> Pair:
        """The codes of both languages, each empty where nothing tells."""
        return Pair("", "")

    def held_out(self, split: Split) -> PairSource | None:
        """The validation or test data that comes with this training data, if it does."""
        return None
