"""`chainrule frontier`: quality against speed of every decoding method of some runs."""

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
    open_text_run,
    open_translation_run,
    output,
    print_json,
    read_gammas,
    require_runs,
)
from chainrule.errors import ConfigError
from chainrule.options import require_data

if TYPE_CHECKING:
    from chainrule.frontier.results import FrontierResults, FrontierRow, Speed
    from chainrule.frontier.workload import Workload


def frontier(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, all of the same task.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(help="Output folder: results.json, report.html. An interrupted one resumes.", show_default=False),
    ],
    source: Annotated[
        Path | None, typer.Option(help="Translation runs: file of source sentences.", show_default=False)
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="Translation runs: file of reference translations.", show_default=False)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Text runs: held-out text, for prompts and bits per byte.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Translation runs: use the first N sentences. Text runs: number of prompts (default 32).",
            show_default=False,
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width; 1 leaves beam search out.")] = 5,
    passes: Annotated[str, typer.Option(help="Numbers of refinement passes of nonautoregressive runs.")] = "1,2,4,10",
    gammas: Annotated[str, typer.Option(help="Values of γ of hybrids, besides the learned one.")] = "0,1",
    draft: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Measure speculative decoding with this smaller run as the draft too.",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,16",
    seconds: Annotated[
        float, typer.Option(help="Average measuring time per method and batch size; more gives narrower intervals.")
    ] = 10.0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Measure quality against speed for every decoding method that the runs support.

    Translation runs are measured on a file with references: greedy and beam search, speculative decoding, the passes
    of a nonautoregressive run, the fixed schedule of a hybrid_regressive run. Quality is BLEU and chrF. For example

        chainrule frontier runs/transformer runs/hybrid runs/nar --source test.en --references test.de --out frontier

    Text runs are measured on prompts from a held-out text: greedy decoding and sampling, with and without drafts, whose
    output must be the same, token by token. For example

        chainrule frontier runs/gpt --data held-out.txt --draft runs/small --out frontier

    All methods take turns on the same items, so that other load on the machine affects all of them alike; speeds are
    medians, speed-ups are relative to the first method of the first run. The command prints a table; in the output
    folder, report.html has charts of the Pareto frontier and results.json the values. A failed measurement is listed
    with its reason. Ctrl-C stops; the same command continues.
    """
    require_runs(*runs, *([] if draft is None else [draft]))
    require_data(data, *(None if one is None else str(one) for one in (source, references)))
    numbers, sizes = _numbers("--passes", passes), _numbers("--batches", batches)
    from chainrule.frontier.measure import measure_frontier, require_time

    require_time(seconds)
    common: dict[str, Any] = {"limit": limit, "device": device, "threads": threads, "draft": draft}
    common["gammas"] = read_gammas(gammas)
    if data is not None:
        if source is not None or references is not None:
            raise ConfigError("--data is for text runs, --source and --references for translation runs; give one kind")
        workload = _generation(runs, data, **common)
    else:
        if source is None or references is None:
            raise ConfigError("give --source and --references for translation runs, or --data for text runs")
        workload = _translation(runs, source, references, beam=beam, passes=numbers, **common)
    try:
        with _progress_bar() as progress:
            results = measure_frontier(
                workload, out=out, batches=sizes, seconds=seconds, command=_command(), progress=progress
            )
    except KeyboardInterrupt:
        errors.print("stopped; finished measurements are saved, and the same command continues", highlight=False)
        return
    if json:
        print_json(results.model_dump(mode="json"))
    else:
        show(results, out)


def _translation(
    runs: list[Path],
    source: Path,
    references: Path,
    *,
    beam: int,
    passes: list[int],
    limit: int | None,
    draft: Path | None,
    gammas: list[float],
    **how: Any,
) -> Workload:
    from chainrule.data.text import read_all_lines
    from chainrule.frontier.translation import TranslationWorkload

    return TranslationWorkload(
        [open_translation_run(run, **how) for run in runs],
        read_all_lines(source),
        read_all_lines(references),
        beam=beam,
        passes=passes,
        draft=None if draft is None else open_translation_run(draft, **how),
        limit=limit,
        gammas=gammas,
    )


def _generation(
    runs: list[Path], data: str, *, limit: int | None, draft: Path | None, gammas: list[float], **how: Any
) -> Workload:
    from chainrule.frontier.generation import GenerationWorkload

    opened = [open_text_run(run, **how) for run in runs]
    drafting = None if draft is None else open_text_run(draft, **how)
    return GenerationWorkload(opened, data, draft=drafting, limit=limit, gammas=gammas)


def _numbers(option: str, text: str) -> list[int]:
    """A comma-separated list of positive numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ConfigError(f"{option} takes positive numbers, such as 1,2,4 (got {text!r})")
    return [int(part) for part in dict.fromkeys(parts)]


def _command() -> str:
    return shlex.join(["chainrule", *sys.argv[1:]])


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Progress on stderr, with what is measured."""
    from chainrule.training.progress import console_reporter

    reporter = console_reporter(errors)
    reporter.begin("measuring")
    try:
        yield lambda what, fraction: reporter.update(fraction, {"stage": what})
    finally:
        reporter.end()


def show(results: FrontierResults, out: Path) -> None:
    """Print a table for each batch size, failures, findings and the path of the report."""
    from rich.markup import escape

    from chainrule.frontier.results import failures_by_reason

    metrics = list(dict.fromkeys(name for row in results.rows for name in row.quality))
    for batch in results.batches:
        _show_batch(results, batch, metrics)
    for names, reason in failures_by_reason(results.failures):
        output.print(f"[red]{escape(names)}[/red] failed: {escape(reason)}", highlight=False, soft_wrap=True)
    for name, text in results.protocol.items():
        if name.endswith("signature"):
            output.print(f"{name}: {text}", highlight=False, soft_wrap=True)
    if results.findings:
        output.print("\n" + escape("\n".join(results.findings)), highlight=False)
    output.print(f"\n[green]{escape(str(out / 'report.html'))}[/green]", highlight=False, soft_wrap=True)


def _show_batch(results: FrontierResults, batch: int, metrics: list[str]) -> None:
    from rich.table import Table

    threads = f"{results.threads} thread{'s' if results.threads > 1 else ''}"
    title = f"batch size {batch}, {threads}; ×: speed-up over {results.baseline}"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold")
    checked = any(row.same_output_as is not None for row in results.rows)
    for name in (*metrics, f"{results.item}s/s", "quartiles", "tokens/s", "×"):
        table.add_column(name, justify="right", no_wrap=True)
    if checked:
        table.add_column("same output")
    for row in results.rows:
        if (speed := row.speed(batch)) is not None:
            table.add_row(*_cells(results, row, speed, metrics, checked=checked))
    output.print(table)
    output.print()


def _cells(
    results: FrontierResults, row: FrontierRow, speed: Speed, metrics: list[str], *, checked: bool
) -> Iterator[str]:
    from rich.markup import escape

    from chainrule.frontier.results import format_quality, output_check
    from chainrule.reports.formatting import count, digits

    yield escape(row.name)
    for metric in metrics:
        yield format_quality(row.quality[metric], metric) if metric in row.quality else "–"
    low, high = speed.interval
    yield digits(speed.items_per_second)
    yield f"{digits(low)}–{digits(high)}"
    yield count(speed.tokens_per_second)
    yield "–" if speed.speedup is None else f"{speed.speedup:.2f}"
    if checked:
        yield output_check(row.model_copy(update={"speeds": [speed]}), results.item)
