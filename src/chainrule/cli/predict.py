"""`chainrule predict`: labels, tags or answers for each line of standard input, or labels for images."""

from __future__ import annotations

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.lines import text_lines, with_progress
from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, open_run, refuse_options
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chainrule.tasks.base import Run
    from chainrule.tasks.examples import LinePrediction


def predict(
    context: typer.Context,
    run: RunPath,
    data: Annotated[
        str | None,
        typer.Option(help="Images to label, in the forms of training data; others read lines.", show_default=False),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Taggers: viterbi (exact; default of first-order taggers), greedy or beam. Readers: expected_f1 "
            "(default) or probability.",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Taggers: beam width.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="One line of JSON per line, with probabilities.")] = False,
) -> None:
    """Predict labels, tags or answers for each line of standard input, one output line per input line or image.

    A classifier reads a text and prints the label and its probability, separated by a tab. A tagger reads words
    separated by spaces and prints their tags. A reader reads a question, a tab and a context, or
    {"question": …, "context": …}, and prints the answer, its probability, and the probability of no answer. Empty lines
    stay empty. Bytes that are not UTF-8 are replaced by U+FFFD, and a note counts such lines. Input of any length is
    streamed. A vit or image_classifier labels the images of --data, one per line. For example

        chainrule predict runs/sentiment < reviews.txt

        chainrule predict runs/vit --data t10k-images-idx3-ubyte.gz
    """
    results = _predictions(
        context, open_run(run, device=device, threads=threads, checkpoint=checkpoint), data, search, beam
    )
    for found in with_progress(results, "predicting"):
        typer.echo("" if found is None else format_prediction(found, as_json=json))


def _predictions(
    context: typer.Context, run: Run, data: str | None, search: str | None, beam: int
) -> Iterator[LinePrediction | None]:
    from chainrule.tasks.base import require
    from chainrule.tasks.examples import LinePrediction, PredictionRun
    from chainrule.tasks.image_labels import ImageLabelRun
    from chainrule.tasks.tags import TagRun

    if isinstance(run, ImageLabelRun):
        if data is None or search is not None:
            raise ConfigError(f"{str(run.path)!r} {run.does}; name them with --data, without --search")
        found = run.predict(data)
        return (LinePrediction(f"{one.label}\t{one.probability:.4f}", one._asdict()) for one in found)
    by_beam = isinstance(run, TagRun) and run.default_search == "beam" if search is None else search == "beam"
    refuse_options(context, "beam", unless=by_beam, needs="a tagger that is decoded by beam search (--search beam)")
    reads_lines = require(run, PredictionRun)  # type: ignore[type-abstract]  # not instantiated
    if data is not None:
        raise ConfigError(f"--data is for images, and {str(run.path)!r} {run.does}; give lines on standard input")
    return reads_lines.predict_lines(text_lines(sys.stdin.buffer), search=search, beam=beam)


def format_prediction(found: LinePrediction, *, as_json: bool) -> str:
    return json_module.dumps(found.record, ensure_ascii=False) if as_json else found.line
