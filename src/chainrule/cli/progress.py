"""Progress of a comparison in the terminal: a bar for each family, then one for each stage after training."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from chainrule.comparison.compare import ComparisonListener
from chainrule.training.progress import progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from chainrule.comparison.plan import ComparisonPlan
    from chainrule.comparison.results import FailedFamily


class ComparisonProgress(ComparisonListener):
    """Progress bars in a terminal; elsewhere, a line for each finished family."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            refresh_per_second=4,
            transient=True,
        )
        self.tasks: dict[str, Any] = {}
        self.label = ""

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def planned(self, plan: ComparisonPlan) -> None:
        self.console.print(f"{len(plan.jobs)} families, {plan.budget}", highlight=False)
        for job in plan.jobs:
            self.tasks[job.family] = self.bars.add_task(job.family, total=1.0, status="waiting")

    def job(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        status = progress_line(dict(record)) if fraction < 1 else "done"
        self.bars.update(self.tasks[name], completed=fraction, status=status)
        if fraction >= 1 and not self.console.is_terminal:
            self.console.print(f"{name}: trained and scored", highlight=False)

    def failed(self, failure: FailedFamily) -> None:
        self.console.print(f"[red]{failure.name}[/red] failed: {failure.reason}", highlight=False)
        if failure.name in self.tasks:
            self.bars.update(self.tasks[failure.name], status="failed")

    def stage(self, label: str, fraction: float) -> None:
        if label not in self.tasks:
            if self.label in self.tasks:
                self.bars.update(self.tasks[self.label], visible=False)
            self.tasks[label], self.label = self.bars.add_task(label, total=1.0, status=""), label
        self.bars.update(self.tasks[label], completed=fraction)
