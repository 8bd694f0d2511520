"""FASTA: sequences of nucleotides or amino acids, each after a line with '>' and its name.

The name is dropped, and so are comment lines (';') and the line ends inside a sequence: a record is a document of
letters only. A file of a few long records, such as chromosomes, is a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from chainrule.data.compression import open_bytes
from chainrule.errors import DataError

SUFFIXES = (".fasta", ".fa", ".fna", ".faa", ".ffn", ".frn", ".fas")
HEAD = 1 << 20  # bytes read to tell many short records from a few long ones
FEW_RECORDS = 10
OPENING = re.compile(rb">[^\n]*\r?\n[A-Za-z*-]{20,}\r?(\n|$)")  # a name, and a first line of letters without spaces


def is_fasta(path: Path, form: str) -> bool:
    """Whether a file is FASTA, by its suffix or its first two lines."""
    return form in SUFFIXES or OPENING.match(_head(path, 1 << 12)) is not None


def has_few_records(path: Path) -> bool:
    """Whether fewer than ten records begin in the first MiB."""
    head = _head(path, HEAD)
    return head.count(b"\n>") + head.startswith(b">") < FEW_RECORDS


def _head(path: Path, size: int) -> bytes:
    try:
        with open_bytes(path) as file:
            return file.read(size)
    except DataError:  # reported where the file is read
        return b""


def sequences(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Yield the sequence of every record."""
    letters: list[str] = []
    named = False
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if line.startswith(">"):
            if letters:
                yield "".join(letters)
            letters, named = [], True
        elif line and not line.startswith(";"):
            if not named:
                raise DataError(
                    f"line {number:,} of {str(path)!r} comes before the first '>' line, so this is not FASTA; "
                    "fix the file, or rename it to .txt"
                )
            letters.append(line)
    if letters:
        yield "".join(letters)
