"""`chainrule models`: which families there are."""

from __future__ import annotations

from chainrule.cli.options import Json, output, print_json


def models(json: Json = False) -> None:
    """List the families: name, task and what each one is."""
    from chainrule.models import FAMILIES

    rows = [{"name": name, "task": kind.task, "summary": kind.summary()} for name, kind in FAMILIES.items()]
    if json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("family", "task", "what it is"):
        table.add_column(column, header_style="bold")
    for row in rows:
        table.add_row(f"[cyan]{row['name']}[/cyan]", row["task"], row["summary"])
    output.print(table)
    output.print("\nTrain one with [bold]chainrule train FAMILY --data my.txt --out runs/mine[/bold]", highlight=False)
