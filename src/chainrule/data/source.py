"""What every source of text can do: be read again and again, in pieces of bounded size."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple, final

from chainrule.config import DataConfig
from chainrule.errors import DataError

Unit = Literal["stream", "documents"]

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
class Source(ABC):
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

    def validation(self) -> Source | None:
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
