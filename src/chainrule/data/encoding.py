"""Text in encodings other than UTF-8: recognised and refused, since the bytes of UTF-8 are those that are scored."""

from __future__ import annotations

import codecs

from chainrule.errors import DataError

MARKS = (  # byte order marks, the longer ones first
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
LAYOUTS = {"UTF-32LE": (4, 0), "UTF-32BE": (4, 3), "UTF-16LE": (2, 0), "UTF-16BE": (2, 1)}
"""Bytes of a unit, and the position of the byte that is not NUL in Latin text."""
INSPECTED = 1 << 12  # bytes at the start of a file
MOSTLY = 0.7  # fraction of units that are Latin


def wide_encoding(start: bytes) -> str | None:
    """Return the name of UTF-16 or UTF-32, by a byte order mark or by NUL at every other byte; None if neither."""
    for mark, name in MARKS:
        if start.startswith(mark):
            return name
    for name, (width, position) in LAYOUTS.items():
        units = [start[at : at + width] for at in range(0, min(len(start), INSPECTED) - width + 1, width)]
        latin = [unit for unit in units if unit[position] and unit.count(0) == width - 1]
        if units and len(latin) >= MOSTLY * len(units):
            return name
    return None


def not_text(
    where: str, start: bytes, *, error: UnicodeDecodeError | None = None, offset: int | None = None
) -> DataError:
    """Return the error for a file or line that begins with `start`: undecodable, or with a NUL byte, at an offset."""
    if (name := wide_encoding(start)) is not None:
        return DataError(f"{where} is {name} text; convert it to UTF-8, e.g. with iconv -f {name} -t UTF-8")
    at = "" if offset is None else f" at offset {offset}"
    if error is None:
        return DataError(f"{where} is not text: NUL byte{at}; give a text file")
    return DataError(
        f"{where} is not UTF-8 text: {error.reason}{at}; convert it, e.g. with iconv -f LATIN1 -t UTF-8, or give a "
        "text file"
    )
