"""Standard input by lines, and progress on stderr while something is computed from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

from chainrule.cli.options import errors, output

if TYPE_CHECKING:
    from chainrule.training.progress import Reporter

T = TypeVar("T")


class InputLine(NamedTuple):
    """A line without its line end. Bytes that are not UTF-8 are replaced by U+FFFD."""

    text: str
    size: int  # bytes, with the line end
    valid: bool  # whether all of it is UTF-8


def input_lines(file: BinaryIO) -> Iterator[InputLine]:
    """The lines of a file; a byte order mark at its start is dropped."""
    for number, line in enumerate(file):
        bare = line.rstrip(b"\r\n")
        if number == 0:
            bare = bare.removeprefix(b"\xef\xbb\xbf")
        try:
            yield InputLine(bare.decode("utf-8"), len(line), valid=True)
        except UnicodeDecodeError:
            yield InputLine(bare.decode("utf-8", "replace"), len(line), valid=False)


def text_lines(file: BinaryIO) -> Iterator[str]:
    """The texts of the lines of a file; after the last, a note says how many were not UTF-8."""
    replaced: list[int] = []
    for number, line in enumerate(input_lines(file), start=1):
        if not line.valid:
            replaced.append(number)
        yield line.text
    if replaced:
        which = "1 line is" if len(replaced) == 1 else f"{len(replaced):,} lines are"
        errors.print(
            f"[yellow]note[/yellow] {which} not UTF-8 text, the first is line {replaced[0]:,}; their undecodable bytes "
            "were replaced by U+FFFD",
            highlight=False,
            soft_wrap=True,
        )


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
    from chainrule.training.progress import shown_fraction

    with shown_fraction(True, label, errors) as report:
        assert report is not None
        yield report


def _reporter() -> Reporter:
    from chainrule.training.progress import ANNOUNCED_AFTER, console_reporter

    return console_reporter(errors, announce_after=ANNOUNCED_AFTER)


def _quiet() -> Reporter:
    from chainrule.training.progress import Reporter

    return Reporter()
