"""`chainrule predict`: what a run says about each line."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, errors, open_prediction_run
from chainrule.errors import DataError

if TYPE_CHECKING:
    from chainrule.tasks.examples import LinePrediction


def predict(
    run: RunPath,
    search: Annotated[
        str | None,
        typer.Option(
            help="Taggers: viterbi (exact, of a first-order tagger and its default), greedy or beam.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Taggers: hypotheses that a beam follows.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each line, with all probabilities.")] = False,
) -> None:
    """Say something about every line of standard input: chainrule predict RUN < texts.

    A line comes out for each line that goes in, in their order; an empty one stays empty. Files may be of any length.

    A classifier gives the label and its probability, by tab. A tagger takes words separated by spaces and gives their
    tags. A reader takes a question, a tab and a text, or {"question": …, "context": …}, and gives the answer, its
    probability, and that of there being none.
    """
    opened = open_prediction_run(run, device=device, threads=threads, checkpoint=checkpoint)
    for found in watched(opened.predict_lines(lines(sys.stdin.buffer), search=search, beam=beam)):
        typer.echo("" if found is None else shown(found, as_json=json))


def shown(found: LinePrediction, *, as_json: bool) -> str:
    return json_module.dumps(found.record, ensure_ascii=False) if as_json else found.line


def lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a binary file as text."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number:,} of standard input is not UTF-8 text: {error.reason}; convert it, e.g. with iconv"
            ) from None


def watched(found: Iterable[LinePrediction | None]) -> Iterator[LinePrediction | None]:
    """The same, with a count on stderr that leaves no trace."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} lines"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for one in found:
            bar.advance(task)
            yield one
