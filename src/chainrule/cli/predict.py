"""`chainrule predict`: labels, tags or answers for each line of standard input."""

from __future__ import annotations

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.lines import text_lines, with_line_count
from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, open_prediction_run

if TYPE_CHECKING:
    from chainrule.tasks.examples import LinePrediction


def predict(
    run: RunPath,
    search: Annotated[
        str | None,
        typer.Option(
            help="Taggers: viterbi (exact; default of first-order taggers), greedy or beam.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Taggers: beam width.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="One line of JSON per line, with probabilities.")] = False,
) -> None:
    """Predict labels, tags or answers for each line of standard input, one output line per input line.

    A classifier reads a text and prints the label and its probability, separated by a tab. A tagger reads words
    separated by spaces and prints their tags. A reader reads a question, a tab and a context, or
    {"question": …, "context": …}, and prints the answer, its probability, and the probability of no answer. Empty lines
    stay empty. Input of any length is streamed. For example

        chainrule predict runs/sentiment < reviews.txt
    """
    opened = open_prediction_run(run, device=device, threads=threads, checkpoint=checkpoint)
    results = opened.predict_lines(text_lines(sys.stdin.buffer), search=search, beam=beam)
    for found in with_line_count(results, "predicting"):
        typer.echo("" if found is None else format_prediction(found, as_json=json))


def format_prediction(found: LinePrediction, *, as_json: bool) -> str:
    return json_module.dumps(found.record, ensure_ascii=False) if as_json else found.line
