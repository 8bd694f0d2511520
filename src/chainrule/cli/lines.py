"""Standard input by lines, with a line count on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, TypeVar

from chainrule.cli.options import errors
from chainrule.errors import DataError

T = TypeVar("T")


def text_lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a UTF-8 file without their line ends. Raises DataError for other encodings."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number:,} of standard input is not UTF-8 text: {error.reason}; convert it, e.g. with iconv"
            ) from None


def with_line_count(items: Iterable[T], verb: str) -> Iterator[T]:
    """Pass items through and show their number on stderr while they are processed."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn(f"{verb}: {{task.completed:,}} lines"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for item in items:
            yield item
            bar.update(task, advance=1)
