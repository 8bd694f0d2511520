"""`chainrule verify`: check the properties of a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.lines import progress_bar
from chainrule.cli.options import Json, RunPath, Threads, open_run, output, print_json
from chainrule.errors import ConfigError, RunError
from chainrule.limits import LARGEST_SEED

if TYPE_CHECKING:
    from chainrule.evaluation.verify import Finding


def verify(
    run: RunPath,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Random seed of the test sequences.")] = 0,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Restore changed or damaged files first: settings and tokenizers from their copies, weights from the "
            "last checkpoint.",
        ),
    ] = False,
    update_checksums: Annotated[
        bool,
        typer.Option("--update-checksums", help="Accept all files as they are, after a deliberate change."),
    ] = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Check the files of a run by their checksums, and its model: probabilities sum to one, no information from the
    future, decoding equals scoring, …

    The checks of the model are those that chainrule's own tests run on every family, here on the weights of the run,
    in double precision on the CPU. The exit status is 1 if a check fails. For example

        chainrule verify runs/first

        chainrule verify runs/first --repair
    """
    if repair and update_checksums:
        raise ConfigError("--repair and --update-checksums exclude each other; remove one of them")
    findings = _file_findings(run, repair=repair, update=update_checksums)
    if not any(finding.status == "failed" for finding in findings if not finding.check.startswith("state/")):
        opened = open_run(run, device="cpu", threads=threads)
        with progress_bar("verifying"):
            findings += opened.verify(seed=seed)
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


def _file_findings(run: Path, *, repair: bool, update: bool) -> list[Finding]:
    """Compare the files of a run with their checksums, after restoring them or accepting them if that is asked for."""
    from chainrule.training.checkpoint import RunFolder

    folder = RunFolder(run)
    if not run.is_dir():
        raise RunError(f"no run at {str(run)!r}; check the path")
    if update:
        folder.checksums.update()
    done = folder.repair() if repair else {}
    problems = folder.file_problems()
    from chainrule.evaluation.verify import Finding

    findings = [
        Finding(f"{name} matches its checksum", "failed" if problem else "passed", problem or done.get(name, ""))
        for name, problem in problems.items()
    ]
    if not folder.checksums.recorded():
        advice = f"none are recorded; record them with: chainrule verify {run} --update-checksums"
        findings.append(Finding("files match their checksums", "not applicable", advice))
    return findings
