"""Prompts of `chainrule generate`: an option, or the lines of standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence
from typing import NamedTuple

from chainrule.cli.lines import text_lines
from chainrule.cli.options import errors
from chainrule.errors import DataError

SILENCE = 2.0  # seconds without input after which the user is told what is waited for


class Prompts(NamedTuple):
    """What to continue."""

    texts: Sequence[str]
    by_line: bool  # whether each is a line of standard input


def read_prompts(option: str | None) -> Prompts:
    """The prompt of the command line; `-`, or none at all with a file or a pipe as input, reads one per line.

    An empty pipe counts as no prompt, since it is what many programs start others with.
    """
    kind = input_kind()
    if option not in (None, "-") or (option is None and kind is None):
        return Prompts([option or ""], False)
    if kind == "pipe":
        say_what_is_waited_for()
    lines = list(text_lines(sys.stdin.buffer))
    if not lines and option is None and kind == "pipe":
        return Prompts([""], False)
    if not lines:
        raise DataError("standard input is empty; give one prompt per line, or one with --prompt TEXT")
    return Prompts(lines, True)


def input_kind() -> str | None:
    """What standard input was redirected to: a `file` or a `pipe`; None for a terminal, a device or nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, AttributeError, ValueError):  # closed, or replaced by an object without a descriptor
        return None
    return "file" if stat.S_ISREG(mode) else "pipe" if stat.S_ISFIFO(mode) else None


def say_what_is_waited_for() -> None:
    """A pipe may stay silent, for example one that was inherited by mistake."""
    if os.name == "posix" and not select.select([sys.stdin], [], [], SILENCE)[0]:
        errors.print("waiting for prompts on standard input; --prompt '' generates without one", highlight=False)
