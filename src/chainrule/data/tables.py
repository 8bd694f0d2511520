"""Tables: columns separated by tabs, or by commas in a .csv, whose quoted cells may contain commas and line ends.

Columns are chosen by name or by number, counted from 1. Without a choice they are recognised: by the usual names in a
header, else by what they contain. A column of labels repeats a few values; the text is the column of long cells.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chainrule.errors import DataError

TEXT_NAMES = ("text", "sentence", "content", "body", "review", "comment", "message", "tweet", "description", "title")
LABEL_NAMES = ("label", "class", "category", "class index", "sentiment", "topic", "target", "polarity", "rating")
SURE_LABEL_NAMES = LABEL_NAMES[:4]  # a first row with one of these is a header, whatever its other cells

LONGEST_CELL = 8 << 20  # characters
ENOUGH_ROWS = 20  # to tell by their values which column is the label
ROWS_PER_LABEL = 10  # a column with at least so many rows for each of its values is one of labels
LONGEST_NAME = 40  # characters of a column name


class Row(NamedTuple):
    """The cells of a row, and the line where it ends."""

    number: int
    cells: list[str]


class Columns(NamedTuple):
    """Where text and label are, from 0, and whether the first row is a header."""

    text: int
    label: int
    header: bool


def is_comma_separated(form: str) -> bool:
    """Whether files with this suffix are CSV; all other tables are separated by tabs."""
    return form == ".csv"


def rows_of(lines: Iterable[str], path: Path, *, commas: bool) -> Iterator[Row]:
    """Yield every row with a cell that is not blank."""
    rows = _comma_rows(lines, path) if commas else _tab_rows(lines)
    return (row for row in rows if any(cell.strip() for cell in row.cells))


def _tab_rows(lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        yield Row(number, line.removesuffix("\r").split("\t"))


def _comma_rows(lines: Iterable[str], path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DataError(f"line {reader.line_num:,} of {str(path)!r} is not CSV: {error}; fix its quotes") from None
        if cells is None:
            return
        yield Row(reader.line_num, cells)


def names_of(cells: Sequence[str]) -> list[str]:
    """Return the cells of a header as names in lower case."""
    return [cell.strip().lower() for cell in cells]


def first_known(names: Sequence[str], known: Sequence[str]) -> int | None:
    """Return the column of the first of the `known` names that is among the names of the columns."""
    return next((names.index(name) for name in known if name in names), None)


def is_header(cells: Sequence[str]) -> bool:
    """Whether a first row contains names of columns that are in common use."""
    names = names_of(cells)
    if first_known(names, SURE_LABEL_NAMES) is not None:
        return True
    return first_known(names, LABEL_NAMES) is not None and first_known(names, TEXT_NAMES) is not None


def recognise(rows: Sequence[Sequence[str]]) -> Columns | None:
    """Tell from the content of a table which column is the text and which the label; None if it does not show."""
    body = rows[1:]
    width = len(rows[0]) if rows else 0
    if len(body) < ENOUGH_ROWS or width < 2 or any(len(row) != width for row in rows):
        return None
    columns = list(zip(*body, strict=True))
    labels = [index for index, cells in enumerate(columns) if 2 <= len(set(cells)) <= len(cells) / ROWS_PER_LABEL]
    if not labels or (len(labels) > 1 and 1 not in labels):
        return None
    label = 1 if 1 in labels else labels[0]
    length = [0 if index == label else sum(map(len, cells)) for index, cells in enumerate(columns)]
    text = next(index for index, characters in enumerate(length) if characters >= max(length) / 2)
    return Columns(text, label, _names_columns(rows[0], columns, label))


def _names_columns(first: Sequence[str], columns: Sequence[Sequence[str]], label: int) -> bool:
    """Whether a first row is a header of unusual names: short, no numbers, and not found below in any column."""
    if first[label] in columns[label]:
        return False
    return all(cell.strip() and len(cell) <= LONGEST_NAME and not cell.strip().isdecimal() for cell in first)


def repeated_columns(rows: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Return the columns that may be labels, from 0, with the number of their different values."""
    width = min((len(row) for row in rows), default=0)
    counts = [len({row[index] for row in rows}) for index in range(width)]
    return [(index, count) for index, count in enumerate(counts) if 2 <= count <= len(rows) / ROWS_PER_LABEL]
