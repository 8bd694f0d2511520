"""`chainrule import`: bring a model of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.export import Form
from chainrule.cli.options import Json, print_json, print_table


def import_(
    path: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face GPT-2 or BERT folder, an ARPA file or a word2vec file.", show_default=False
        ),
    ],
    from_: Annotated[Form, typer.Option("--from", help="hf, arpa or word2vec.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run.", show_default=False)],
    json: Json = False,
) -> None:
    """Make a run of a model that another tool has trained, so that it can be scored, sampled and compared."""
    from chainrule.tasks import import_run

    about = import_run(path, str(from_), out).info()
    if json:
        print_json(about)
    else:
        print_table({name: value for name, value in about.items() if value is not None})
