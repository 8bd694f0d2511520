"""`chainrule compare`: find the best family for some data and a budget."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, On, errors, output, print_json
from chainrule.errors import ConfigError
from chainrule.limits import LARGEST_SEED, MOST_THREADS
from chainrule.options import require_data

if TYPE_CHECKING:
    from chainrule.comparison.results import ComparisonResults, ComparisonRow

STARTED = time.monotonic()  # the budget includes the imports of the command


def compare(
    data: Annotated[
        str,
        typer.Option(
            help="Training data: text, images, labelled texts or pairs: a file, a folder, builtin:prose, "
            "builtin:digits, builtin:dates, … as for `chainrule train --data`. A list of names or words is read as one "
            "document per line; --set data.unit=documents or stream decides.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder: runs, results.json, report.html.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option(help="Pairs: the sources, line by line, of the translations in --data.", show_default=False),
    ] = None,
    families: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated families, such as ngram,gpt. Default: all language models; for images, the image "
            "models and gpt; for labels, the encoders words, attentive_conv and attentive_conv_unmasked; for pairs, "
            "all translation models, and seq2seq_without_attention.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="text, images, labels or translation. Default: what the data show.", show_default=False),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Labels: a further encoder of the classifier, trained before: a run of word2vec, elmo or bert, or the "
            "folder of a BERT or GPT-2. Repeatable.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Time of the whole comparison: training, in equal parts, scoring, mixtures and report. Default: 10.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Training tokens per family, instead of a time budget.", show_default=False),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(
            help="Held-out data for the metrics; with --test, for early stopping and mixture gates instead.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Held-out data for the metrics.", show_default=False)] = None,
    valid_fraction: Annotated[
        float | None,
        typer.Option(
            help="Without --valid and --test: fraction of the data, at its end, to hold out; --set "
            "data.valid_from=spread takes it evenly from all of the data. Default: 0.1.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer, as for `chainrule train`. Default: chars; for labels, words; for pairs of whole "
            "sentences, bpe with a vocabulary that suits their number.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Random seed.")] = 0,
    threads: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_THREADS, help="Threads per family; families are trained in parallel on the remaining cores."
        ),
    ] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Setting of a family or of the data, such as gpt.model.width=192 or data.unit=documents. Repeatable.",
            show_default=False,
        ),
    ] = None,
    on: On = None,
    budget_curve: Annotated[
        bool,
        typer.Option("--budget-curve", help="Repeat the comparison with 1/8, 1/4, 1/2 and all of --minutes."),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the comparison in --out.")] = False,
    json: Json = False,
) -> None:
    """Train several families with the same budget, score them on the same held-out data, and recommend one.

    Each family is trained in its own process, at a size chosen for the budget. A mixture of the best families is
    fitted as well, on data that is not used for the metrics: once as a static model and once with a neural cache,
    which adapts to the text that it reads. If time is short, less of the held-out data is scored, the same for every
    model, and the table says so. The command prints a table of bits per byte with 95 %
    confidence intervals, size, speed and memory. In the output folder, report.html adds learning curves, quality
    against decoding speed, where the models differ, and samples; results.json has the same values, and runs/ the
    trained models. Ctrl-C stops the comparison; --resume continues it. For example

        chainrule compare --data my.txt --minutes 10 --out comparison
    """
    require_data(data, valid, test)
    from chainrule.comparison.compare import budget_curve as run_curve
    from chainrule.comparison.compare import compare as run_comparison
    from chainrule.comparison.progress import comparison_progress

    if budget_curve and tokens is not None:
        raise ConfigError("--budget-curve varies --minutes; leave --tokens out")
    settings: dict[str, Any] = {
        "out": out,
        "families": None if families is None else [name.strip() for name in families.split(",") if name.strip()],
        "task": task,
        "source": source,
        "encoders": encoder or [],
        "minutes": minutes,
        "valid": valid,
        "test": test,
        "held_out": valid_fraction,
        "tokenizer": tokenizer,
        "seed": seed,
        "threads": threads,
        "overrides": set_ or [],
        "command": _command(),
        "resume": resume,
        "started": STARTED,
    }
    try:
        with contextlib.ExitStack() as stack:
            if on is not None:
                from chainrule.data.cluster import connected

                settings["executor"] = stack.enter_context(connected(on))
            listener = stack.enter_context(comparison_progress(errors))
            if budget_curve:
                curve = run_curve(data, listener=listener, **settings)
            else:
                results = run_comparison(data, tokens=tokens, listener=listener, **settings)
    except KeyboardInterrupt:
        if not out.is_dir():  # before anything was planned
            raise
        errors.print("stopped; finished work is saved, and the same command with --resume continues")
        return
    if budget_curve:
        if json:
            print_json(curve.model_dump(mode="json"))
        else:
            output.print(
                f"{curve.recommendation}\n\n[green]{out / 'report.html'}[/green]", highlight=False, soft_wrap=True
            )
    elif json:
        print_json(results.model_dump(mode="json"))
    else:
        show(results, out)


def _command() -> str:
    return shlex.join(["chainrule", *(argument for argument in sys.argv[1:] if argument != "--resume")])


def _marked(row: ComparisonRow) -> str:
    """The name of a row, with a mark if the model adapts to the text that it reads."""
    return f"{row.name} *" if row.evaluation == "adaptive" else row.name


def _columns(results: ComparisonResults) -> list[str]:
    """The columns of the table after the name, which fit into 100: the deciding metric has its interval."""
    quality = "perplexity" if results.tokens_per_image is None else "nats/image"
    costs = ["training\ntokens/s", f"decoding\n{results.speed_unit}/s", "memory\nMB"]
    if results.metrics:
        first, *others = (one.name for one in results.metrics)
        return [first, "95 %", *others, f"bits/\n{results.unit}", "size", *costs]
    return ["size", f"bits/{results.unit}", "95 %", quality, *costs]


def _cells(row: ComparisonRow, results: ComparisonResults) -> list[str]:
    from chainrule.comparison.notebook import shown_interval

    size = results.tokens_per_image
    parameters = f"{row.parameters / 1e6:.2f}M"
    costs = [f"{row.train_tokens_per_second:,.0f}", f"{row.speed:,.0f}", f"{row.memory_bytes / 1e6:,.0f}"]
    if results.metrics:
        first, *others = (f"{row.metrics[one.key].value:.{one.digits}f}" for one in results.metrics)
        return [first, shown_interval(row, results.metrics[0]), *others, f"{row.bits_per_byte:.3f}", parameters, *costs]
    low, high = row.interval
    quality = f"{row.nats_per_token * size if size else row.perplexity:,.2f}"
    return [parameters, f"{row.bits_per_byte:.4f}", f"{low:.3f}–{high:.3f}", quality, *costs]


def show(results: ComparisonResults, out: Path) -> None:
    """Print the table, failures, the recommendation and the path of the report."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits into 80 columns
    table.add_column("model", no_wrap=True)
    for name in _columns(results):
        table.add_column(name, justify="right", no_wrap=True)
    for row in results.rows:
        name = f"[bold]{_marked(row)}[/bold]" if row.name == results.best else _marked(row)
        table.add_row(name, *_cells(row, results))
    output.print(f"{results.data}: {results.budget}\n", highlight=False)
    output.print(table)
    if any(row.evaluation == "adaptive" for row in results.rows):
        output.print("\n* adapts to the text that it reads, by a neural cache; all other rows are static models")
    for note in results.notes:
        output.print(f"note: {note}", markup=False, highlight=False)
    for failure in results.failures:
        output.print(f"[red]{failure.name}[/red] failed: {failure.reason}", markup=True, highlight=False)
    output.print(f"\n{results.recommendation}", highlight=False)
    output.print(f"\n[green]{out / 'report.html'}[/green]", highlight=False, soft_wrap=True)
