"""A comparison in the terminal: a bar for each family, then one for each stage after the training."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from chainrule.comparison.compare import Watcher
from chainrule.training.progress import progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from chainrule.comparison.plan import Plan
    from chainrule.comparison.results import Failure


class Lines(Watcher):
    """Bars where there is a terminal; a line for each family that is done where there is none."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
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

    def planned(self, plan: Plan) -> None:
        self.console.print(f"{len(plan.legs)} families, {plan.budget}", highlight=False)
        for leg in plan.legs:
            self.tasks[leg.family] = self.bars.add_task(leg.family, total=1.0, figures="waiting")

    def leg(self, name: str, share: float, record: Mapping[str, Any]) -> None:
        self.bars.update(
            self.tasks[name], completed=share, figures=progress_line(dict(record)) if share < 1 else "done"
        )
        if share >= 1 and not self.console.is_terminal:
            self.console.print(f"{name}: trained and scored", highlight=False)

    def failed(self, failure: Failure) -> None:
        self.console.print(f"[red]{failure.name}[/red] failed: {failure.reason}", highlight=False)
        if failure.name in self.tasks:
            self.bars.update(self.tasks[failure.name], figures="failed")

    def stage(self, label: str, share: float) -> None:
        if label not in self.tasks:
            if self.label in self.tasks:
                self.bars.update(self.tasks[self.label], visible=False)
            self.tasks[label], self.label = self.bars.add_task(label, total=1.0, figures=""), label
        self.bars.update(self.tasks[label], completed=share)
