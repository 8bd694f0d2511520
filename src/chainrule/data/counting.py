"""How much text a source holds, and where to cut it in two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.source import Part, Source, Unit
from chainrule.errors import DataError

Progress = Callable[[int, int], None]
"""Called with what is done and the total: characters of a stream, or else documents. A total of 0 is not known."""

DOCUMENTS_A_CALL = 1024


def watched(pieces: Iterable[str], unit: Unit, total: int, progress: Progress) -> Iterator[str]:
    """The same pieces; every now and then `progress` hears how many have gone by."""
    done = 0
    for piece in pieces:
        yield piece
        done += len(piece) if unit == "stream" else 1
        if unit == "stream" or done % DOCUMENTS_A_CALL == 0:
            progress(done, total)
    progress(done, total)


def count(source: Source, *, cache: Path | None = None, progress: Progress | None = None) -> int:
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
    source: Source,
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
