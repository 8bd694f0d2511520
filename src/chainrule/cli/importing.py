"""`chainrule import`: make a run from a model of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.export import FORMATS_HELP, ExchangeFormat
from chainrule.cli.lines import progress_bar
from chainrule.cli.options import Json, importing_torch, print_json, print_table, require_new_run
from chainrule.options import require_data


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Folder that export has written, Hugging Face folder, ARPA file, or word2vec file (text or binary).",
            show_default=False,
        ),
    ],
    from_: Annotated[ExchangeFormat, typer.Option("--from", help=f"File format to read. {FORMATS_HELP}")],
    out: Annotated[Path, typer.Option(help="Run folder to create.", show_default=False)],
    json: Json = False,
) -> None:
    """Make a run from a model of another tool, ready for score, generate, mix and the other commands.

    For example

        chainrule import gpt2/ --from hf --out runs/gpt2

    The way back is `chainrule export runs/gpt2 --to hf --out exported`.
    """
    require_data(str(path))
    require_new_run(out)
    with importing_torch():
        from chainrule.tasks import import_run

    with progress_bar("importing"):
        about = import_run(path, str(from_), out).info()
    if json:
        print_json(about)
    else:
        print_table({name: value for name, value in about.items() if value is not None})
