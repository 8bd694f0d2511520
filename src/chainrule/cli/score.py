"""`chainrule score`: how likely is this text?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import (
    Checkpoint,
    Device,
    Json,
    RunPath,
    Threads,
    errors,
    open_run,
    open_translator,
    output,
    print_json,
    print_table,
    read_lines,
    score_rows,
)
from chainrule.cli.translate import BatchSize, Beam, LengthCandidates, LengthPenalty, Passes, Shortlist
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from chainrule.decoding import Search
    from chainrule.evaluation.likelihood import TokenScore
    from chainrule.runs import ImageRun, PredictingRun, TokenRun, TranslationRun

SURPRISE = ("#1a9850", "#66bd63", "#a6d96a", "#fee08b", "#fdae61", "#f46d43", "#d73027")
"""Colours of 0–1, 1–2, 2–3, 3–5, 5–8, 8–12 and more bits."""
BITS = (1, 2, 3, 5, 8, 12)


def score(
    run: RunPath,
    data: Annotated[
        str | None, typer.Option(help="What to score, in the same forms as for training.", show_default=False)
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text to score, as it stands.", show_default=False)] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="Of a run that translates: the source of the text, or the file of sources.", show_default=False
        ),
    ] = None,
    task: Annotated[
        str, typer.Option(help="likelihood, or translation: translate --source and compare with --references.")
    ] = "likelihood",
    references: Annotated[
        Path | None,
        typer.Option(
            help="With --task translation: a file with the right translation of each line.", show_default=False
        ),
    ] = None,
    beam: Beam = 5,
    length_penalty: LengthPenalty = 1.0,
    passes: Passes = None,
    length_candidates: LengthCandidates = None,
    shortlist: Shortlist = False,
    batch: BatchSize = 32,
    target_language: Annotated[
        str | None, typer.Option(help="With --task translation: zh lets BLEU cut Chinese.", show_default=False)
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Also each token's surprisal and what was expected instead.")
    ] = False,
    alternatives: Annotated[int, typer.Option(min=1, help="With --per-token: how many alternatives.")] = 5,
    picture: Annotated[
        Path | None,
        typer.Option(help="Of a classifier or a tagger: draw the confusion matrix here, as .png.", show_default=False),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="Tokens that a window moves by, for models with a context; smaller is better and slower. "
            "By default half the context.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Score a text: nats/token, bits/byte, perplexity, accuracy, and the protocol they were measured by.

    Bits per byte refer to the raw text, so runs with different tokenizers compare. The result is kept in
    RUN/scores.jsonl.

    With --task translation, the lines of a file are translated and compared with references: BLEU, chrF, exact
    match, and nats/token of the references.

    Labels, tags and answers are compared with those in --data: accuracy and macro-F1, or exact match and F1.
    """
    if task not in ("likelihood", "translation"):
        raise ConfigError(f"--task takes likelihood or translation, got {task!r}")
    if task == "translation":
        if source is None or references is None or text is not None or data is not None:
            raise ConfigError("--task translation takes the files --source and --references, and no --text or --data")
        translator = open_translator(run, device=device, threads=threads, checkpoint=checkpoint)
        settings = {
            "beam": beam, "length_penalty": length_penalty, "shortlist": shortlist,
            "passes": passes, "length_candidates": length_candidates,
        }  # fmt: skip
        _score_translations(translator, Path(source), references, settings, batch, target_language, json=json)
        return
    if references is not None:
        raise ConfigError("--references is for --task translation; add it, or score the file with --data")
    found = open_run(run, device=device, threads=threads, checkpoint=checkpoint)
    from chainrule.runs import ImageRun, PredictingRun, TokenRun, require

    if isinstance(found, PredictingRun):
        if data is None or text is not None or source is not None or stride is not None or per_token:
            raise ConfigError(f"{str(run)!r} {found.does}; give data with what is right as --data, and nothing else")
        _score_predictions(found, data, picture, json=json)
        return
    if picture is not None:
        raise ConfigError("--picture shows which labels are taken for which; it is for classifiers and taggers")
    if isinstance(found, ImageRun):
        if data is None or text is not None or source is not None or stride is not None or per_token:
            raise ConfigError(f"{str(run)!r} models images; give those to score with --data, and nothing else")
        _score_images(found, data, json=json)
        return
    opened = require(found, TokenRun)  # type: ignore[type-abstract]  # nothing is made of it
    about: dict[str, Any] = {"data": data, "source": source, "stride": stride}
    with _bar() as progress:
        result = opened.score(text, **about, progress=progress).model_dump(mode="json")
    tokens = opened.token_scores(text, **about, alternatives=alternatives) if per_token else []
    if json:
        if per_token:
            result["per_token"] = [_plain(opened, token) for token in tokens]
        print_json(result)
        return
    if per_token:
        _show_tokens(opened, tokens)
    print_table(score_rows(result))


def _score_predictions(run: PredictingRun, data: str, picture: Path | None, *, json: bool) -> None:
    """Compare what is said about texts with what is right."""
    from chainrule.evaluation.labels import LabelScore, draw_confusion

    with _bar() as progress:
        found = run.score(data, progress=progress)
    if picture is not None:
        if not isinstance(found, LabelScore):
            raise ConfigError(f"{str(run.path)!r} {run.does}, and there are no labels to confuse; leave out --picture")
        draw_confusion(found, picture)
    values = found.model_dump(mode="json")
    if json:
        print_json(values)
        return
    print_table(score_rows(values))
    if isinstance(found, LabelScore):
        output.print()
        print_table(found.f1, title="[bold]F1[/bold]")


def _score_images(run: ImageRun, data: str, *, json: bool) -> None:
    with _bar() as progress:
        found = run.score(data, progress=progress).model_dump(mode="json")
    if json:
        print_json(found)
    else:
        print_table(score_rows(found))


def _score_translations(
    run: TranslationRun,
    source: Path,
    references: Path,
    settings: dict[str, Any],
    batch: int,
    target_language: str | None,
    *,
    json: bool,
) -> None:
    """Translate a file and compare it with its references."""
    from chainrule.decoding import Search

    search = Search.parse(settings)
    texts, wanted = read_lines(source), read_lines(references)
    with _bar() as progress:
        found = run.score_translations(
            texts, wanted, search, batch=batch, target_language=target_language, progress=progress
        ).model_dump(mode="json")
    if json:
        print_json(found)
        return
    print_table({**found, "search": _how(run, search)})


def _how(run: TranslationRun, search: Search) -> str:
    """How the translations were looked for, in a few words."""
    from chainrule.decoding.translation import decoding_budget
    from chainrule.interface.conditional import ParallelModel

    if isinstance(run.model, ParallelModel):
        budget = decoding_budget(run.model, search)
        return f"in parallel: passes {budget.passes}, lengths {budget.lengths}"
    return f"beam {search.beam}, length penalty {search.length_penalty:g}"


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr that leaves no trace."""
    from rich.progress import Progress

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("scoring", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _plain(run: TokenRun, token: TokenScore) -> dict[str, Any]:
    """One token for machines."""
    pieces = run.tokenizer.pieces([token.token, *(other.token for other in token.alternatives)])
    others = zip(pieces[1:], token.alternatives, strict=True)
    return {
        "token": pieces[0],
        "id": token.token,
        "surprisal": token.surprisal,
        "rank": token.rank,
        "alternatives": [{"token": piece, "id": one.token, "probability": one.probability} for piece, one in others],
    }


def _show_tokens(run: TokenRun, tokens: list[TokenScore]) -> None:
    """The text coloured by surprisal, then the tokens that surprised most."""
    from rich.table import Table
    from rich.text import Text

    line = Text()
    for piece, token in zip(run.tokenizer.pieces([token.token for token in tokens]), tokens, strict=True):
        line.append(piece, style=_style(token.surprisal))
    output.print(line)
    legend = Text("bits: ", style="dim")
    for label, colour in zip(("<1", "<2", "<3", "<5", "<8", "<12", "more"), SURPRISE, strict=True):
        legend.append(f" {label} ", style=f"black on {colour}")
    output.print(legend)
    table = Table(box=None, pad_edge=False, title="most surprising", title_justify="left")
    for column in ("token", "bits", "rank", "expected"):
        table.add_column(column, justify="right" if column in ("bits", "rank") else "left")
    for token in sorted(tokens, key=lambda token: -token.surprisal)[:12]:
        entry = _plain(run, token)
        expected = "  ".join(f"{one['token']!r} {one['probability']:.0%}" for one in entry["alternatives"])
        table.add_row(repr(entry["token"]), f"{token.surprisal / math.log(2):.1f}", f"{token.rank}", Text(expected))
    output.print(table)


def _style(nats: float) -> str:
    bits = nats / math.log(2)
    return f"black on {SURPRISE[sum(bits >= limit for limit in BITS)]}"
