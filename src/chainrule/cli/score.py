"""`chainrule score`: likelihood, or the quality of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import (
    Checkpoint,
    Device,
    Gamma,
    Json,
    On,
    RunPath,
    Threads,
    open_run,
    output,
    print_json,
    print_table,
    refuse_options,
)
from chainrule.cli.translate import BatchSize, Beam, LengthCandidates, LengthPenalty, Passes, Shortlist
from chainrule.errors import ConfigError
from chainrule.options import require_data

if TYPE_CHECKING:
    from chainrule.tasks.scoring import TextToken
    from chainrule.tasks.text import TextRun

SURPRISAL_COLOURS = ("#1a9850", "#66bd63", "#a6d96a", "#fee08b", "#fdae61", "#f46d43", "#d73027")
"""Colours of 0–1, 1–2, 2–3, 3–5, 5–8, 8–12 and more bits."""
BITS = (1, 2, 3, 5, 8, 12)


def score(
    context: typer.Context,
    run: RunPath,
    data: Annotated[
        str | None, typer.Option(help="Data to score, in the same forms as for training.", show_default=False)
    ] = None,
    text: Annotated[str | None, typer.Option(help="Text to score.", show_default=False)] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Translation: source of --text, or file of sources of --data.", show_default=False),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            help="likelihood; translation: translate --source and compare with --references; choice: choose the most "
            "probable ending of each example of --data."
        ),
    ] = "likelihood",
    references: Annotated[
        Path | None,
        typer.Option(help="With --task translation: file of reference translations, line by line.", show_default=False),
    ] = None,
    beam: Beam = 5,
    length_penalty: LengthPenalty = 1.0,
    passes: Passes = None,
    length_candidates: LengthCandidates = None,
    shortlist: Shortlist = False,
    gamma: Gamma = None,
    batch: BatchSize = 32,
    target_language: Annotated[
        str | None,
        typer.Option(help="With --task translation: language for BLEU, such as zh.", show_default=False),
    ] = None,
    shots: Annotated[
        int, typer.Option(min=0, help="With --task choice: examples with their answer before each context.")
    ] = 0,
    examples: Annotated[
        str | None, typer.Option(help="With --shots: the file of these examples.", show_default=False)
    ] = None,
    per_token: Annotated[
        bool,
        typer.Option("--per-token", help="Also print each token's surprisal and alternatives."),
    ] = False,
    alternatives: Annotated[int, typer.Option(min=1, help="With --per-token: number of alternatives.")] = 5,
    picture: Annotated[
        Path | None,
        typer.Option(help="Classifiers and taggers: write the confusion matrix as a .png file.", show_default=False),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Stride of the sliding window, in tokens, for models with a limited context. A smaller stride gives "
            "more context and takes longer. Default: half the context.",
            show_default=False,
        ),
    ] = None,
    on: On = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Score data: nats/token, bits/byte, perplexity, accuracy, and the protocol of the measurement.

    Bits per byte refer to the raw text, so runs with different tokenizers are comparable. The score is appended to
    RUN/scores.jsonl. Examples:

        chainrule score runs/gpt --text "How likely is this?" --per-token

        chainrule score runs/gpt --data test.txt --json

        chainrule score runs/en-de --task translation --source test.en --references test.de

        chainrule score runs/gpt --task choice --data choices.jsonl --shots 2 --examples shots.jsonl

    With --task translation, the source file is translated and compared with the references: BLEU, chrF, exact
    match, and nats/token of the references. With --task choice, a language model chooses among the endings of
    {"context": …, "endings": […], "label": …} by their likelihood per token and per byte. Runs that predict labels,
    tags or answers are compared with the annotations in --data: accuracy and macro-F1, entity F1, or exact match
    and F1. With --on, the workers of a cluster share the likelihood of large data; the result is the same.
    """
    if task not in ("likelihood", "translation", "choice"):
        raise ConfigError(f"--task takes likelihood, translation or choice, got {task!r}")
    if task == "choice" and (data is None or text is not None or source is not None):
        raise ConfigError("--task choice takes a file of contexts and endings as --data, and no --text or --source")
    if task == "translation" and (source is None or references is None or text is not None or data is not None):
        raise ConfigError("--task translation takes the files --source and --references, and no --text or --data")
    if task == "likelihood" and references is not None:
        raise ConfigError("--references needs --task translation; add it, or score the file with --data")
    refuse_options(
        context, "beam", "length_penalty", "passes", "length_candidates", "shortlist", "batch", "target_language",
        unless=task == "translation", needs="--task translation",
    )  # fmt: skip
    refuse_options(context, "alternatives", unless=per_token, needs="--per-token")
    refuse_options(context, "shots", "examples", unless=task == "choice", needs="--task choice")
    refuse_options(context, "on", unless=task == "likelihood", needs="--task likelihood")
    refuse_options(context, "per_token", "picture", "stride", unless=task != "choice", needs="another --task")
    require_data(data, *(None if one is None else str(one) for one in (source if text is None else None, references)))
    opened = open_run(run, device=device, threads=threads, checkpoint=checkpoint)
    from chainrule.tasks.base import require
    from chainrule.tasks.gamma import with_gamma
    from chainrule.tasks.scoring import ScoreRequest
    from chainrule.tasks.text import TextRun
    from chainrule.tasks.translation import TranslationRun

    if task == "choice":
        assert data is not None
        _print_choices(require(opened, TextRun), data, shots, examples, json=json)
        return
    if task == "translation":
        opened = require(opened, TranslationRun)
    opened = with_gamma(opened, gamma)
    request = ScoreRequest(
        data=data,
        text=text,
        source=source,
        references=references,
        stride=stride,
        per_token=per_token,
        alternatives=alternatives,
        picture=picture,
        search={
            "beam": beam, "length_penalty": length_penalty, "shortlist": shortlist,
            "passes": passes, "length_candidates": length_candidates,
        },
        batch=batch,
        target_language=target_language,
    )  # fmt: skip
    with progress_bar("scoring") as progress:
        if on is None:
            report = opened.evaluate(request, progress)
        else:
            from chainrule.data.cluster import working_at
            from chainrule.tasks.spread import OpenedRun, evaluate_in_jobs

            how = OpenedRun(run.absolute(), device=device, checkpoint=checkpoint, gamma=gamma)
            with working_at(on):
                report = evaluate_in_jobs(opened, how, request, progress)
    if json:
        print_json(report.values)
        return
    if report.tokens:
        _show_tokens(report.tokens)
    print_table(report.rows)
    for title, rows in report.tables.items():
        output.print()
        print_table(rows, title=f"[bold]{title}[/bold]")


def _print_choices(run: TextRun, data: str, shots: int, examples: str | None, *, json: bool) -> None:
    from chainrule.metrics import score_rows

    with progress_bar("scoring") as progress:
        found = run.score_choices(data, shots=shots, examples=examples, progress=progress).model_dump(mode="json")
    if json:
        print_json(found)
        return
    print_table(score_rows({name: value for name, value in found.items() if name != "examples"}))
    print_table({name: found[name] for name in ("examples", "shots", "truncated")})


def _show_tokens(tokens: Sequence[TextToken]) -> None:
    """The text coloured by surprisal, then the most surprising tokens."""
    from rich.table import Table
    from rich.text import Text

    line = Text()
    for token in tokens:
        line.append(token.piece, style=_style(token.score.surprisal))
    output.print(line)
    legend = Text("bits: ", style="dim")
    for label, colour in zip(("<1", "<2", "<3", "<5", "<8", "<12", "more"), SURPRISAL_COLOURS, strict=True):
        legend.append(f" {label} ", style=f"black on {colour}")
    output.print(legend)
    table = Table(box=None, pad_edge=False, title="most surprising", title_justify="left")
    for column in ("token", "bits", "rank", "expected"):
        table.add_column(column, justify="right" if column in ("bits", "rank") else "left")
    for token in sorted(tokens, key=lambda token: -token.score.surprisal)[:12]:
        others = zip(token.alternatives, token.score.alternatives, strict=True)
        expected = "  ".join(f"{piece!r} {one.probability:.0%}" for piece, one in others)
        bits = f"{token.score.surprisal / math.log(2):.1f}"
        table.add_row(repr(token.piece), bits, f"{token.score.rank}", Text(expected))
    output.print(table)


def _style(nats: float) -> str:
    bits = nats / math.log(2)
    return f"black on {SURPRISAL_COLOURS[sum(bits >= limit for limit in BITS)]}"
