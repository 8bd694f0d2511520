"""`chainrule sweep-gamma`: a hybrid at every weight of its two branches."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.options import (
    Checkpoint,
    Device,
    Json,
    RunPath,
    Threads,
    errors,
    open_text_run,
    open_translation_run,
    output,
    print_json,
    read_gammas,
)
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from chainrule.evaluation.gamma_sweep import SweepPoint


def sweep_gamma(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="Output folder: results.json and plot.svg.", show_default=False)],
    data: Annotated[str | None, typer.Option(help="hybrid_language: held-out text.", show_default=False)] = None,
    source: Annotated[
        Path | None, typer.Option(help="hybrid: file of held-out source sentences.", show_default=False)
    ] = None,
    references: Annotated[
        Path | None, typer.Option(help="hybrid: file of their reference translations.", show_default=False)
    ] = None,
    gammas: Annotated[
        str, typer.Option(help="Values of γ, besides the learned one.")
    ] = "0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1",
    beam: Annotated[int, typer.Option(min=1, help="hybrid: beam width, for γ below 1.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="hybrid: use the first N sentences.", show_default=False)
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Score a hybrid with the learned γ and with fixed values of γ: a table, and a plot.

    γ is the weight of the non-autoregressive branch: 0 is the autoregressive branch by itself, 1 the non-autoregressive
    one, which generates in one pass. A text run is scored by bits/byte, a translation run by nats/token, BLEU and chrF.
    For example

        chainrule sweep-gamma runs/chunks --data held-out.txt --out sweep

        chainrule sweep-gamma runs/hybrid --source test.en --references test.de --out sweep
    """
    values = read_gammas(gammas)
    loading = {"device": device, "threads": threads, "checkpoint": checkpoint}
    if data is not None:
        if source is not None or references is not None:
            raise ConfigError("--data is for hybrid_language, --source and --references for hybrid; give one kind")
        text_run = open_text_run(run, **loading)
        from chainrule.evaluation.gamma_sweep import require_plots, sweep_text

        require_plots()
        points = sweep_text(text_run.model, text_run.scored_corpus(None, data).corpus, gammas=values, progress=_note)
    else:
        if source is None or references is None:
            raise ConfigError("give --data for hybrid_language, or --source and --references for hybrid")
        points = _translation(run, source, references, values, beam, limit, **loading)
    _write(points, out)
    if json:
        print_json([point.model_dump(mode="json") for point in points])
    else:
        _show(points)
        output.print(f"\n[green]{out / 'plot.svg'}[/green]", highlight=False, soft_wrap=True)


def _translation(
    run: Path, source: Path, references: Path, gammas: list[float], beam: int, limit: int | None, **loading: object
) -> list[SweepPoint]:
    opened = open_translation_run(run, **loading)
    from chainrule.data.text import read_all_lines
    from chainrule.decoding import Search
    from chainrule.evaluation.gamma_sweep import require_plots, sweep_translation

    require_plots()
    return sweep_translation(
        opened.translator(),
        read_all_lines(source)[:limit],
        read_all_lines(references)[:limit],
        gammas=gammas,
        search=Search(beam=beam),
        target_language=opened.config.data.target_language or "",
        progress=_note,
    )


def _note(point: SweepPoint) -> None:
    """Report a finished point on stderr."""
    errors.print(f"γ {point.name}: {point.nats_per_token:.4f} nats/token", highlight=False)


def _write(points: list[SweepPoint], out: Path) -> None:
    from chainrule.evaluation.gamma_sweep import draw_sweep
    from chainrule.files import write_whole

    out.mkdir(parents=True, exist_ok=True)
    values = [point.model_dump(mode="json", exclude_none=False) for point in points]
    write_whole(out / "results.json", json_module.dumps(values, indent=1) + "\n")
    draw_sweep(points, out / "plot.svg")


def _show(points: list[SweepPoint]) -> None:
    from rich.table import Table

    names = {"nats_per_token": "nats/token", "bits_per_byte": "bits/byte", "bleu": "BLEU", "chrf": "chrF"}
    shown = [name for name in names if getattr(points[0], name) is not None]
    table = Table(box=None, pad_edge=False)
    table.add_column("γ", justify="right")
    for name in shown:
        table.add_column(names[name], justify="right")
    for point in points:
        digits = {"bleu": 2, "chrf": 2}
        table.add_row(point.name, *(f"{getattr(point, name):.{digits.get(name, 4)}f}" for name in shown))
    output.print(table)
