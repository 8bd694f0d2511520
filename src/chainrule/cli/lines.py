"""Standard input by lines, and progress on stderr while something is computed from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from chainrule.cli.options import errors, output
from chainrule.errors import DataError

if TYPE_CHECKING:
    from chainrule.training.progress import Reporter

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


ANNOUNCED_AFTER = 1.0  # seconds; what is faster leaves no trace in a log


def with_progress(
    items: Iterable[T], verb: str, unit: str = "lines", *, fraction: Callable[[int], float | None] = lambda done: None
) -> Iterator[T]:
    """Pass items through and report on stderr how many are done; `fraction` is of the whole, if that is known.

    Nothing is reported if the results themselves appear in the terminal.
    """
    reporter = _quiet() if output.is_terminal else _reporter()
    reporter.begin(verb)
    try:
        for done, item in enumerate(items, start=1):
            reporter.update(fraction(done), {unit: done})
            yield item
    finally:
        reporter.end()


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[float], None]]:
    """A stage of work: a transient bar, or lines off a terminal, on stderr. The fraction that is done may be given."""
    reporter = _reporter()
    reporter.begin(label)
    reporter.update(None, {})
    try:
        yield lambda share: reporter.update(share, {})
    finally:
        reporter.end()


def _reporter() -> Reporter:
    from chainrule.training.progress import console_reporter

    return console_reporter(errors, announce_after=ANNOUNCED_AFTER)


def _quiet() -> Reporter:
    from chainrule.training.progress import Reporter

    return Reporter()
