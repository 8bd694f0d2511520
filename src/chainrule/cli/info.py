"""`chainrule info`: describe a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chainrule.cli.options import Json, RunPath, open_run, print_json, print_scores, print_table, require_runs

if TYPE_CHECKING:
    from chainrule.training.description import Description


def info(run: RunPath, json: Json = False) -> None:
    """Describe a run: family, number of parameters, vocabulary, data, training time and scores.

    For example

        chainrule info runs/first
    """
    require_runs(run)
    about, rows = _described(run)
    if json:
        print_json(about)
        return
    tables = ("validation", "test", "cleaning", "bleu")
    print_table({name: value for name, value in about.items() if name not in tables} | rows)
    print_scores(about)


def _described(run: Path) -> Description:
    """The stored description of a run, or a new one if its files have changed since."""
    from chainrule.training.checkpoint import RunFolder
    from chainrule.training.description import read_description

    return read_description(RunFolder(run)) or open_run(run, device="cpu").describe()
