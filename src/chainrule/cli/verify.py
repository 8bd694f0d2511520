"""`chainrule verify`: check the properties of a run's model."""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import Json, RunPath, Threads, open_run, output, print_json


def verify(
    run: RunPath,
    seed: Annotated[int, typer.Option(help="Random seed of the test sequences.")] = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Check the model of a run: probabilities sum to one, no information from the future, decoding equals scoring, …

    These are the checks that chainrule's own tests run on every family, here on the weights of the run, in double
    precision on the CPU. The exit status is 1 if a check fails. For example

        chainrule verify runs/first
    """
    opened = open_run(run, device="cpu", threads=threads)
    with progress_bar("verifying"):
        findings = opened.verify(seed=seed)
    failed = [finding for finding in findings if finding.status == "failed"]
    if json:
        print_json({"passed": not failed, "checks": [finding._asdict() for finding in findings]})
    else:
        marks = {
            "passed": "[green]✓[/green]",
            "failed": "[red]✗[/red]",
            "not applicable": "[dim]–[/dim]",
            "exception": "[yellow]![/yellow]",
        }
        for finding in findings:
            detail = f"  [dim]{finding.message}[/dim]" if finding.message else ""
            output.print(f"{marks[finding.status]} {finding.check}{detail}", highlight=False)
    if failed:
        raise typer.Exit(1)
