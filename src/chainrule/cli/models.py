"""`chainrule models`: which families there are, and what can be set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Json, output, print_json

if TYPE_CHECKING:
    from chainrule.config import Settings


def models(
    family: Annotated[
        str | None, typer.Argument(help="Show the settings of one family instead.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """List the families: name, task and what each one is. With a FAMILY, list what can be set with --set."""
    from chainrule.families import single_families

    if family is not None:
        _settings(family, json)
        return
    rows = [{"name": name, "task": kind.task, "summary": kind.summary()} for name, kind in single_families().items()]
    if json:
        print_json(rows)
        return
    _table(("family", "task", "what it is"), [tuple(row.values()) for row in rows])
    output.print("\nSettings of one: [bold]chainrule models gpt[/bold]", highlight=False)
    output.print("Train one: [bold]chainrule train FAMILY --data my.txt --out runs/mine[/bold]", highlight=False)


def _settings(name: str, json: bool) -> None:
    """The model's own settings, those of training with the family's recipe, and those of data."""
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
        _table(("setting", "default", "meaning"), rows)


def _fields(prefix: str, settings: type[Settings], own: dict[str, Any]) -> list[tuple[str, Any, str]]:
    return [
        (f"{prefix}.{name}", own.get(name, field.get_default()), field.description or "")
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
