"""`chainrule models`: list the families and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, output, print_json

if TYPE_CHECKING:
    from chainrule.config import Settings


def models(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", help="Family whose settings to list.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the families, or the settings of one FAMILY with their defaults.

    Without an argument, the command prints the name, task and a one-line description of every family. With a FAMILY, it
    prints what `chainrule train FAMILY --set KEY=VALUE` can set: options of the model, training and data.

    For example

        chainrule models
        chainrule models gpt
    """
    from chainrule.families import single_families

    if family is not None:
        _settings(family, json)
        return
    rows = [{"name": name, "task": kind.task, "summary": kind.summary()} for name, kind in single_families().items()]
    if json:
        print_json(rows)
        return
    _table(("family", "task", "description"), [tuple(row.values()) for row in rows])
    output.print("\nSettings of a family: [bold]chainrule models gpt[/bold]", highlight=False)
    output.print("Train a model: [bold]chainrule train FAMILY --data my.txt --out runs/mine[/bold]", highlight=False)


def _settings(name: str, json: bool) -> None:
    """Print the settings of the model, of training (with the family's recipe) and of the data."""
    from chainrule.api import recipe
    from chainrule.config import DataConfig, TrainConfig
    from chainrule.families import family

    rows = [
        *_fields("model", family(name).Config, {}),
        *_fields("train", TrainConfig, recipe(name).get("train", {})),
        *_fields("data", DataConfig, {}),
    ]
    if json:
        print_json([dict(zip(("setting", "default", "description"), row, strict=True)) for row in rows])
    else:
        _table(("setting", "default", "description"), rows)


def _fields(prefix: str, settings: type[Settings], defaults: dict[str, Any]) -> list[tuple[str, Any, str]]:
    return [
        (f"{prefix}.{name}", defaults.get(name, field.get_default()), field.description or "")
        for name, field in settings.model_fields.items()
        if not field.is_required()
    ]


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, header_style="bold")
    for first, *rest in rows:
        table.add_row(f"[cyan]{first}[/cyan]", *(escape("–" if cell is None else str(cell)) for cell in rest))
    output.print(table)
