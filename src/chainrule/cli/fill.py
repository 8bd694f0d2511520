"""`chainrule fill`: fill the gaps of a text."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import (
    Checkpoint,
    Device,
    Json,
    RunPath,
    Threads,
    open_filling_run,
    output,
    print_json,
    refuse_options,
)


def fill(
    context: typer.Context,
    run: RunPath,
    text: Annotated[str, typer.Option(help="Text with a <> for each gap.", show_default=False)],
    n_best: Annotated[int, typer.Option(min=1, help="Number of fillings, best first.")] = 5,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Beam width. Default: 8, or --n-best if larger.", show_default=False),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, help="Maximum tokens per gap, for t5.")] = 16,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Fill the gaps of a text with a masked model (bert) or a span model (t5).

    A `bert` predicts one token per gap, so <><> is a gap of two tokens; a `t5` generates spans of any length. The
    output is a table of fillings with their probability given the rest of the text. For example

        chainrule fill runs/bert --text "the cat <> on the mat"
    """
    opened = open_filling_run(run, device=device, threads=threads, checkpoint=checkpoint)
    from chainrule.models.t5 import T5

    refuse_options(
        context, "longest", unless=isinstance(opened.model, T5), needs="a run of t5, whose gaps have any length"
    )
    with progress_bar("filling"):
        found = opened.fill(text, num=n_best, beam=beam, longest=longest)
    if json:
        print_json([{**one._asdict(), "probability": math.exp(one.log_prob)} for one in found])
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("probability", justify="right")
    table.add_column("gaps")
    table.add_column("text")
    for one in found:
        gaps = " · ".join(map(_line, one.gaps))
        table.add_row(f"{100 * math.exp(one.log_prob):.3g} %", Text(gaps, style="bold"), Text(_line(one.text)))
    output.print(table)


def _line(text: str) -> str:
    """A text on one line, with line ends escaped."""
    return repr(text)[1:-1]
