"""`chainrule info`: describe a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from chainrule.cli.options import Json, RunPath, errors, open_run, print_json, print_scores, print_table, require_runs
from chainrule.errors import RunError
from chainrule.files import require_parent, require_suffix

if TYPE_CHECKING:
    from chainrule.training.curves import LearningCurve
    from chainrule.training.description import Description


def info(
    run: RunPath,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the learning curve as a .svg, .png or .pdf file.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Describe a run: family, number of parameters, vocabulary, data, training time, learning curve and scores.

    For example

        chainrule info runs/first

        chainrule info runs/first --plot curve.svg
    """
    require_runs(run)
    if plot is not None:
        from chainrule.reports.learning import PICTURES

        require_suffix(plot, PICTURES)
        require_parent(plot)
    curve = _curve(run)
    if plot is not None:
        _plot(run, curve, plot)
    about, rows = _described(run)
    if json:
        print_json(about)
        return
    tables = ("validation", "test", "cleaning", "bleu")
    if curve is not None:
        rows = {**rows, "learning_curve": curve.summary}
    print_table({name: value for name, value in about.items() if name not in tables} | rows)
    print_scores(about)


def _described(run: Path) -> Description:
    """The stored description of a run, or a new one if its files have changed since."""
    from chainrule.training.checkpoint import RunFolder
    from chainrule.training.description import read_description

    return read_description(RunFolder(run)) or open_run(run, device="cpu").describe()


def _curve(run: Path) -> LearningCurve | None:
    from chainrule.training.checkpoint import RunFolder
    from chainrule.training.curves import learning_curve

    return learning_curve(RunFolder(run).records("metrics.jsonl"))


def _plot(run: Path, curve: LearningCurve | None, out: Path) -> None:
    from chainrule.reports.learning import write_curve

    if curve is None:
        raise RunError(
            f"{str(run)!r} has no learning curve: none was recorded, as for n-gram models, mixtures and imported runs; "
            "plot a run that was trained in steps"
        )
    write_curve(curve, out, name=str(run))
    errors.print(f"[green]{escape(str(out))}[/green]", highlight=False, soft_wrap=True)
