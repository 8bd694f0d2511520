"""Counts of a text: characters, words, lines, distinct symbols, odd bytes, and repetitions across splits."""

from __future__ import annotations

import codecs
import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from chainrule.data.compression import open_bytes
from chainrule.data.encoding import wide_encoding

CHUNK = 1 << 20  # bytes read at a time
SHORTEST_LINE = 20  # characters of a line of a stream whose repetition says something
KEPT_CONTROLS = "\t\n\r"
LISTED = 8  # kinds of odd characters that are named


def odd_bytes(paths: Sequence[Path], progress: Callable[[int, int], None] | None = None) -> dict[str, int | str]:
    """Return what is unusual in the bytes of text files: encoding, byte order marks, NUL, what is not UTF-8.

    `progress` is called with the bytes read so far, decompressed, and the size of the files.
    """
    found: Counter[str] = Counter()
    encoding = "UTF-8"
    size, read = sum(path.stat().st_size for path in paths), 0
    for path in paths:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with open_bytes(path) as file:
            start = data = file.read(CHUNK)
            found["byte_order_marks"] += start.startswith(codecs.BOM_UTF8)
            encoding = wide_encoding(start) or encoding
            while data:
                following = file.read(CHUNK)
                read += len(data)
                if progress is not None:
                    progress(min(read, size), size)
                found["NUL_bytes"] += data.count(0)
                text = decoder.decode(data, final=not following)
                if "\ufffd" in text:
                    found["bytes_that_are_not_UTF-8"] += text.count("\ufffd") - data.count("\ufffd".encode())
                data = following
    if encoding == "UTF-8" and (found["bytes_that_are_not_UTF-8"] or found["NUL_bytes"]):
        encoding = "not UTF-8 text"
    return {"encoding": encoding, **{name: count for name, count in found.items() if count}}


def count_text(pieces: Iterable[str], unit: str) -> dict[str, Any]:
    """Return counts of the documents or the stream, and of unusual characters."""
    counts: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    lengths: list[int] = []
    for piece in pieces:
        counts["documents"] += unit == "documents"
        counts["lines"] += piece.count("\n") + (unit == "documents")
        counts["characters"] += len(piece)
        counts["bytes"] += len(piece.encode()) + (unit == "documents")
        counts["words"] += len(piece.split())
        characters.update(piece)
        lengths += [len(piece)] if unit == "documents" else map(len, piece.split("\n"))
    result: dict[str, Any] = {name: count for name, count in counts.items() if count}
    result["distinct_characters"] = len(characters)
    result["characters_per_document" if unit == "documents" else "characters_per_line"] = length_range(lengths)
    return result | {name: count for name, count in _odd_characters(characters).items() if count}


def watched(pieces: Iterable[str], total: int, progress: Callable[[int, int], None] | None) -> Iterator[str]:
    """Yield the pieces of a text of so many characters, and report how many have been read."""
    read = 0
    for piece in pieces:
        yield piece
        read += len(piece)
        if progress is not None:
            progress(min(read, total), total)


def length_range(lengths: Sequence[int]) -> dict[str, float]:
    """Return the shortest, median and longest of some lengths."""
    return {"shortest": min(lengths), "median": median(lengths), "longest": max(lengths)}


def _odd_characters(characters: Counter[str]) -> dict[str, int]:
    controls = {
        _name(one): count
        for one, count in characters.most_common()
        if unicodedata.category(one) in ("Cc", "Cf", "Co", "Cn") and one not in KEPT_CONTROLS
    }
    odd = {"carriage_returns": characters["\r"], "replacement characters (U+FFFD)": characters["\ufffd"]}
    return odd | dict(list(controls.items())[:LISTED])


def _name(character: str) -> str:
    code = f"U+{ord(character):04X}"
    name = unicodedata.name(character, "control character" if ord(character) < 0xA0 else "")
    return f"{name.lower()} ({code})" if name else code


def repeated(training: Iterable[str], held_out: Iterable[str], unit: str) -> tuple[int, int]:
    """Return how many documents or long lines of held-out data are training data as well, and how many there are."""
    wanted = [_mark(text) for text in _units(held_out, unit)]
    missing = set(wanted)
    known: set[bytes] = set()
    for text in _units(training, unit):
        if (mark := _mark(text)) in missing:
            known.add(mark)
    return sum(mark in known for mark in wanted), len(wanted)


def _units(pieces: Iterable[str], unit: str) -> Iterator[str]:
    if unit == "documents":
        yield from pieces
        return
    for piece in pieces:
        yield from (line for line in piece.split("\n") if len(line) >= SHORTEST_LINE)


def _mark(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
