"""`chainrule verify`: can the numbers of this run be trusted?"""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.options import Json, RunPath, Threads, open_run, output, print_json


def verify(
    run: RunPath,
    seed: Annotated[int, typer.Option(help="Seed of the random sequences.")] = 0,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Check the model of a run: probabilities sum to one, the future does not leak, the cache changes nothing …

    The checks are those that every family passes in chainrule's own tests. They run in double precision on the CPU.
    Status 1 if one fails.
    """
    findings = open_run(run, device="cpu", threads=threads).verify(seed=seed)
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
