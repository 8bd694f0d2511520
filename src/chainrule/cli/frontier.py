"""`chainrule frontier`: what each way of decoding gives for the time it takes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import (
    Device,
    Json,
    Threads,
    errors,
    open_translator,
    open_writer,
    output,
    print_json,
    read_lines,
)
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from chainrule.frontier.results import Results, Row, Speed
    from chainrule.frontier.task import Task


def frontier(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs with one task.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for results.json and report.html; it may hold a beginning.", show_default=False)
    ],
    source: Annotated[
        Path | None, typer.Option(help="Runs that translate: the file of sentences.", show_default=False)
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="... and the file of their right translations.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Runs that write text: a text they have not seen, for prompts.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first sentences; or how many prompts, by default 32.", show_default=False),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Width of the beam search; 1 leaves it out.")] = 5,
    passes: Annotated[str, typer.Option(help="Numbers of passes, of models that have passes.")] = "1,2,4,10",
    draft: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Let this smaller run guess ahead, too.", show_default=False),
    ] = None,
    batches: Annotated[str, typer.Option(help="How many sentences or texts are decoded at once.")] = "1,16",
    seconds: Annotated[float, typer.Option(help="Time for each point, on average; more is surer.")] = 10.0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure quality against speed for every way of decoding that the runs have, and draw it.

    Runs that translate are compared on a file with references: greedy and beam search, drafts of a hybrid by its own
    plan, the passes of a nonautoregressive run, every k-th token first. Quality is BLEU and chrF. For example

        chainrule frontier runs/transformer runs/hybrid runs/nar --source test.en --references test.de --out frontier

    Runs that write text are compared on prompts from a text: greedy and sampled, plain and with drafts, whose text must
    be the same, token by token.

        chainrule frontier runs/gpt --data held-out.txt --draft runs/small --out frontier

    All ways take turns on the same sentences, so that a busy machine disturbs all alike; the figures are medians, and
    ratios are against the first way of the first run. The table is printed, and DIR/report.html draws it. A point that
    fails says why, and the others go on. Ctrl-C stops, and the same command goes on.
    """
    from chainrule.frontier.explore import explore

    asked: dict[str, Any] = {"limit": limit, "device": device, "threads": threads, "draft": draft}
    if data is not None:
        if source is not None or references is not None:
            raise ConfigError("--data is for runs that write text, --source and --references for those that translate")
        task = _writing(runs, data, **asked)
    else:
        if source is None or references is None:
            raise ConfigError("give runs that translate --source and --references, or runs that write text --data")
        numbers = _numbers("--passes", passes)
        task = _translating(runs, source, references, beam=beam, passes=numbers, **asked)
    sizes = _numbers("--batches", batches)
    try:
        with _bar() as tell:
            results = explore(task, out=out, batches=sizes, seconds=seconds, command=_command(), tell=tell)
    except KeyboardInterrupt:
        errors.print("stopped; what is done is kept, and the same command goes on", highlight=False)
        return
    if json:
        print_json(results.model_dump(mode="json"))
    else:
        show(results, out)


def _translating(
    runs: list[Path],
    source: Path,
    references: Path,
    *,
    beam: int,
    passes: list[int],
    limit: int | None,
    draft: Path | None,
    **how: Any,
) -> Task:
    from chainrule.frontier.translating import Translating

    return Translating(
        [open_translator(run, **how) for run in runs],
        read_lines(source),
        read_lines(references),
        beam=beam,
        passes=passes,
        draft=None if draft is None else open_translator(draft, **how),
        limit=limit,
    )


def _writing(runs: list[Path], data: str, *, limit: int | None, draft: Path | None, **how: Any) -> Task:
    from chainrule.frontier.writing import Writing

    opened = [open_writer(run, **how) for run in runs]
    return Writing(opened, data, draft=None if draft is None else open_writer(draft, **how), limit=limit)


def _numbers(option: str, text: str) -> list[int]:
    """1,2,4 as a list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ConfigError(f"{option} takes numbers from 1 on, as in 1,2,4; got {text!r}")
    return [int(part) for part in dict.fromkeys(parts)]


def _command() -> str:
    return shlex.join(["chainrule", *sys.argv[1:]])


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on stderr that leaves no trace."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(24), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, completed=share, description=what)


def show(results: Results, out: Path) -> None:
    """A table for each batch size, what failed, what it comes to, and where the report is."""
    from rich.markup import escape

    from chainrule.frontier.words import gathered

    measures = list(dict.fromkeys(name for row in results.rows for name in row.quality))
    for batch in results.batches:
        _show_batch(results, batch, measures)
    for names, reason in gathered(results.failures):
        output.print(f"[red]{escape(names)}[/red] failed: {escape(reason)}", highlight=False, soft_wrap=True)
    for name, text in results.protocol.items():
        if name.endswith("signature"):
            output.print(f"{name}: {text}", highlight=False, soft_wrap=True)
    if results.findings:
        output.print("\n" + escape("\n".join(results.findings)), highlight=False)
    output.print(f"\n[green]{escape(str(out / 'report.html'))}[/green]", highlight=False, soft_wrap=True)


def _show_batch(results: Results, batch: int, measures: list[str]) -> None:
    from rich.table import Table

    threads = f"{results.threads} thread{'s' if results.threads > 1 else ''}"
    title = f"batch {batch}, {threads}; ×: times as fast as {results.baseline}"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style="bold")
    table.add_column("way", overflow="fold")
    checked = any(row.same_as is not None for row in results.rows)
    for name in (*measures, f"{results.item}s/s", "middle half", "tokens/s", "×"):
        table.add_column(name, justify="right", no_wrap=True)
    if checked:
        table.add_column("the same text")
    for row in results.rows:
        if (speed := row.speed(batch)) is not None:
            table.add_row(*_cells(results, row, speed, measures, checked=checked))
    output.print(table)
    output.print()


def _cells(results: Results, row: Row, speed: Speed, measures: list[str], *, checked: bool) -> Iterator[str]:
    from rich.markup import escape

    from chainrule.frontier.words import quality, verdict
    from chainrule.reports.figures import count, digits

    yield escape(row.name)
    for measure in measures:
        yield quality(row.quality[measure], measure) if measure in row.quality else "–"
    low, high = speed.interval
    yield digits(speed.items_per_second)
    yield f"{digits(low)}–{digits(high)}"
    yield count(speed.tokens_per_second)
    yield "–" if speed.times is None else f"{speed.times:.2f}"
    if checked:
        yield verdict(row.model_copy(update={"speeds": [speed]}), results.item)
