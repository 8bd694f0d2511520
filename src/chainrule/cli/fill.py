"""`chainrule fill`: what is missing here?"""

from __future__ import annotations

import math
from typing import Annotated

import typer

from chainrule.cli.options import Checkpoint, Device, Json, RunPath, Threads, open_filling_run, output, print_json


def fill(
    run: RunPath,
    text: Annotated[str, typer.Option(help="A text in which <> stands for what is missing.", show_default=False)],
    n_best: Annotated[int, typer.Option(min=1, help="Fillings, best first.")] = 5,
    beam: Annotated[
        int | None,
        typer.Option(min=1, help="Fillings that the search follows; by default 8, or --n-best.", show_default=False),
    ] = None,
    longest: Annotated[int, typer.Option(min=1, help="Tokens in a gap, of a run that writes spans (t5).")] = 16,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Fill the gaps of a text: chainrule fill RUN --text "the cat <> on the mat".

    A `bert` writes one token into each gap, so <><> are two tokens side by side; a `t5` writes spans of any length.
    Each filling is shown with its probability given the rest of the text.
    """
    opened = open_filling_run(run, device=device, threads=threads, checkpoint=checkpoint)
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
    """A text in one line, its line ends written out."""
    return repr(text)[1:-1]
