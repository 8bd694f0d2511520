"""How a command fails: one line on standard error, or with --json one object on standard output, and an exit status.

0       done, or stopped with everything saved (`train`, `compare`)
1       a check of `verify` has failed, or a bug: the only case with a traceback
2       an error that the message explains
130     stopped by Ctrl-C; 143: by SIGTERM. Unfinished files are deleted.
141     the reader of a pipe is gone
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import typer

from chainrule.errors import ChainruleError, memory_problem
from chainrule.training.process import launched

ClickException: Any = typer.BadParameter.__mro__[2]  # typer has a copy of click of its own in newer versions


def report_error(error: Exception) -> int:
    """Print an error and return the exit status; what is not an error of the user is raised again."""
    if isinstance(error, ClickException):
        return _usage(error)
    if (problem := _problem(error)) is None:
        raise error
    if launched().rank == 0:
        _print(problem, type(error).__name__)
    elif not isinstance(error, ChainruleError):  # such as memory, of this process only
        sys.stderr.write(f"process {launched().rank}: {problem}\n")
    return 2


def report_stop(status: int) -> int:
    """Say that a signal has stopped the command."""
    name = "SIGTERM" if status == 128 + signal.SIGTERM else "Ctrl-C"
    _print(f"stopped by {name}; unfinished files are deleted", "Interrupted", label="")
    return status


def _usage(error: Any) -> int:
    """An error of the parser of arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":  # `chainrule` alone prints its help
        error.show()
        return int(error.exit_code)
    command = error.ctx.command_path if getattr(error, "ctx", None) is not None else "chainrule"
    message = " ".join(error.format_message().split()).rstrip(".")
    _print(f"{message}; see {command} --help", "UsageError")
    return int(error.exit_code)


def _problem(error: Exception) -> str | None:
    """An error in one line; None for a bug."""
    if isinstance(error, ChainruleError):
        return str(error)
    if isinstance(error, OSError):
        if error.filename is None and error.strerror:  # a write to standard output
            from chainrule.files import write_error

            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # Python flushes it at exit, which would fail again
            return str(write_error("standard output", error))
        return f"{error.strerror}: {error.filename!r}" if error.filename is not None else str(error)
    return memory_problem(error)


def _print(message: str, kind: str, label: str = "error") -> None:
    if launched().rank > 0:  # the first of the processes that train a model says the same
        return
    if json_requested():
        typer.echo(json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False))
        return
    from rich.markup import escape

    from chainrule.cli.options import errors

    start = f"[bold red]{label}[/bold red] " if label else ""
    errors.print(start + escape(message), soft_wrap=True, highlight=False)


def json_requested() -> bool:
    """Whether --json is among the arguments, before any `--`."""
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--json" in arguments[:end]
