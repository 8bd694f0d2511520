"""`chainrule mix`: one run of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import (
    Device,
    Json,
    Threads,
    errors,
    output,
    print_json,
    print_scores,
    print_table,
    use_threads,
)

if TYPE_CHECKING:
    from chainrule.tasks.base import Run


def mix(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN1 RUN2 …", help="Runs over one vocabulary.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new run.", show_default=False)],
    kind: Annotated[
        str, typer.Option(help="mixture: weighted sum of probabilities; ensemble: weighted product, renormalised.")
    ] = "mixture",
    gate: Annotated[
        str, typer.Option(help="context: weights follow the text; learned: one for all text; fixed: as given.")
    ] = "context",
    weights: Annotated[
        str | None,
        typer.Option(help="One a run, as in 0.3,0.7: where the gate begins, or stays if fixed.", show_default=False),
    ] = None,
    neural_cache: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Size in tokens of a neural cache (Grave et al. 2017) of recurrent and convolutional runs, e.g. 2000.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(
            help="Text to fit the gate to, that no run was trained on. By default the runs' own validation data.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all chance.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Put trained runs together into one model that is better than each.

    The runs must share a vocabulary: same data, same tokenizer. The gate is fitted to validation data, never to test
    data; the new run stands alone and is scored, generated from, verified and mixed like any other. For example

        chainrule mix runs/ngram runs/gpt --out runs/both
    """
    use_threads(threads)
    import chainrule
    from chainrule.training.progress import LiveLine

    run = chainrule.mix(
        runs,
        out=out,
        kind=kind,  # type: ignore[arg-type]  # checked there
        gate=gate,  # type: ignore[arg-type]
        weights=None if weights is None else _numbers(weights),
        neural_cache=neural_cache,
        valid=valid,
        seed=seed,
        device=device,
        threads=threads,
        reporter=LiveLine(errors),
    )
    if json:
        print_json({**run.info(), "gate": _fit(run)})
    else:
        _report(run)


def _numbers(text: str) -> list[float]:
    from chainrule.errors import ConfigError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--weights takes numbers parted by commas, got {text!r}; for example 0.3,0.7") from None


def _fit(run: Run) -> dict[str, Any] | None:
    """How the gate was fitted, unless it was fixed."""
    return next((record for record in run.folder.records("metrics.jsonl") if "gate" in record), None)


def _report(run: Run) -> None:
    about = run.info()
    rows: dict[str, Any] = {"family": about["family"], "parameters": about["parameters"]}
    fit = _fit(run)
    if fit is not None:
        rows |= {f"{path} alone": nats for path, nats in zip(fit["runs"], fit["parts"], strict=True)}
        rows |= {"before fitting": fit["before"], "after fitting": fit["after"]}
    print_table(rows)
    fitted = {} if fit is None else {"validation": " (the gate was fitted to it)"}
    print_scores(about, note=fitted)
    output.print(
        f"\n[green]{run.path}[/green]  next: chainrule generate {run.path} --prompt …", highlight=False, soft_wrap=True
    )
