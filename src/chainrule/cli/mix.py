"""`chainrule mix`: combine runs into a mixture or an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import (
    Device,
    Json,
    Threads,
    errors,
    importing_torch,
    output,
    print_json,
    print_scores,
    print_table,
    require_new_run,
    require_runs,
)
from chainrule.limits import LARGEST_SEED

if TYPE_CHECKING:
    from chainrule.tasks.base import Run


def mix(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN1 RUN2 …", help="Runs of one task and one vocabulary.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new run.", show_default=False)],
    kind: Annotated[
        str, typer.Option(help="mixture: weighted sum of probabilities; ensemble: weighted product, renormalized.")
    ] = "mixture",
    gate: Annotated[
        str,
        typer.Option(
            help="Weights: context depends on the context, learned is constant, fixed is as given by --weights."
        ),
    ] = "context",
    weights: Annotated[
        str | None,
        typer.Option(
            help="Initial weight of each run, e.g. 0.3,0.7; constant with --gate fixed. Default: equal.",
            show_default=False,
        ),
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
            help="Data to fit the gate to, not used to train any run. Default: the validation data of the runs.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Random seed.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Combine trained runs into one model, usually better than each of them.

    The runs are of text, of images, of translation, or classifiers of texts, and must have the same vocabulary: train
    them on the same data with the same tokenizer. The gate is fitted to
    validation data, never to test data. The new run contains the weights of its parts and can be scored, decoded,
    verified and mixed like any other. For example

        chainrule mix runs/ngram runs/gpt --out runs/both
    """
    require_runs(*runs)
    require_new_run(out)
    with importing_torch(threads):
        import chainrule.mixing
        from chainrule.training.progress import console_reporter

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
        reporter=console_reporter(errors),
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
        raise ConfigError(f"--weights takes numbers separated by commas, got {text!r}; for example 0.3,0.7") from None


def _fit(run: Run) -> dict[str, Any] | None:
    """The record of fitting the gate; None for a fixed gate."""
    return next((record for record in run.folder.records("metrics.jsonl") if "gate" in record), None)


def _report(run: Run) -> None:
    about = run.info()
    rows: dict[str, Any] = {"family": about["family"], "parameters": about["parameters"]}
    fit = _fit(run)
    if fit is not None:
        rows |= {f"{path}": nats for path, nats in zip(fit["runs"], fit["parts"], strict=True)}
        rows |= {"before fitting": fit["before"], "after fitting": fit["after"]}
    print_table(rows)
    fitted = {} if fit is None else {"validation": " (the gate was fitted to it)"}
    print_scores(about, note=fitted)
    output.print(f"\n[green]{run.path}[/green]  next: {run.use.format(run=run.path)}", highlight=False, soft_wrap=True)
