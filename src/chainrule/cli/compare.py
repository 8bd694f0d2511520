"""`chainrule compare`: which family is best for this data and this budget?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, errors, output, print_json

if TYPE_CHECKING:
    from chainrule.comparison.results import Results


def compare(
    data: Annotated[
        str,
        typer.Option(
            help="The text or the images, in the forms of `chainrule train --data`: a file, a folder, builtin:prose, "
            "builtin:digits …",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs, results.json and report.html.", show_default=False)],
    families: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, as in ngram,gpt; by default all that model text, on images neighbours,pixelcnn,gpt.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Time for the whole comparison, shared out evenly. Default 10.", show_default=False),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of a time: training tokens that each family reads.", show_default=False),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(help="Text for the figures; with --test, text for gates and stopping.", show_default=False),
    ] = None,
    test: Annotated[str | None, typer.Option(help="Text for the figures.", show_default=False)] = None,
    valid_fraction: Annotated[
        float | None,
        typer.Option(help="Without --valid and --test: the share cut from the end. Default 0.1.", show_default=False),
    ] = None,
    tokenizer: Annotated[str, typer.Option(help="As for `chainrule train`.")] = "chars",
    seed: Annotated[int, typer.Option(help="Seed of all chance.")] = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of each family; as many families run at once as there are cores for.")
    ] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of one family or of the data: gpt.model.width=192, data.unit=documents. May be repeated.",
            show_default=False,
        ),
    ] = None,
    budget_curve: Annotated[
        bool, typer.Option("--budget-curve", help="Repeat it at an eighth, a quarter, a half and all of --minutes.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in --out.")] = False,
    json: Json = False,
) -> None:
    """Train every family on your data with one budget, score all on the same bytes, and say which to pick.

    Each family is trained in a process of its own with sizes chosen for the budget. The best mixture of them is fitted
    too, on text that is used for nothing else. The table is printed, and DIR/report.html shows the rest: learning
    curves, quality against speed, what each family is good at. Ctrl-C stops, --resume goes on. For example

        chainrule compare --data my.txt --minutes 10 --out comparison
    """
    from chainrule.cli.watching import Lines
    from chainrule.comparison.compare import compare as run_comparison
    from chainrule.comparison.curve import budget_curve as run_curve
    from chainrule.errors import ConfigError

    if budget_curve and tokens is not None:
        raise ConfigError("--budget-curve goes over minutes; leave --tokens out")
    settings: dict[str, Any] = {
        "out": out,
        "families": None if families is None else [name.strip() for name in families.split(",") if name.strip()],
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
    }
    try:
        with Lines(errors) as watcher:
            if budget_curve:
                curve = run_curve(data, watcher=watcher, **settings)
            else:
                results = run_comparison(data, tokens=tokens, watcher=watcher, **settings)
    except KeyboardInterrupt:
        errors.print("stopped; what is done is kept, and the same command with --resume goes on")
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
    return shlex.join(["chainrule", *(word for word in sys.argv[1:] if word != "--resume")])


def show(results: Results, out: Path) -> None:
    """The table, what failed, the sentence, and where the report is."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # 80 columns hold it
    table.add_column("model", no_wrap=True)
    quality = "perplexity" if results.values is None else "nats/image"
    columns = ("size", f"bits/{results.unit}", "95 %", quality, "trained\ntokens/s", "written\ntokens/s", "memory\nMB")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in results.rows:
        low, high = row.interval
        table.add_row(
            f"[bold]{row.name}[/bold]" if row.name == results.best else row.name,
            f"{row.parameters / 1e6:.2f}M",
            f"{row.bits_per_byte:.4f}",
            f"{low:.3f}–{high:.3f}",
            f"{row.nats_per_token * results.values if results.values else row.perplexity:,.2f}",
            f"{row.train_tokens_per_second:,.0f}",
            f"{row.decode_tokens_per_second:,.0f}",
            f"{row.memory_bytes / 1e6:,.0f}",
        )
    output.print(f"{results.data}: {results.budget}\n", highlight=False)
    output.print(table)
    for failure in results.failures:
        output.print(f"[red]{failure.name}[/red] failed: {failure.reason}", markup=True, highlight=False)
    output.print(f"\n{results.recommendation}", highlight=False)
    output.print(f"\n[green]{out / 'report.html'}[/green]", highlight=False, soft_wrap=True)
