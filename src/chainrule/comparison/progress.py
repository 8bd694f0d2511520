"""Progress of a comparison: bars in a terminal, lines of text elsewhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from chainrule.training.progress import LogLines, progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from chainrule.comparison.plan import ComparisonPlan
    from chainrule.comparison.results import FailedFamily

P = ParamSpec("P")
R = TypeVar("R")


class ComparisonListener:
    """Progress callbacks of a comparison; all do nothing unless a subclass overrides them."""

    def note(self, line: str) -> None:
        """A warning about the data."""

    def planned(self, plan: ComparisonPlan) -> None:
        """The families and their sizes have been chosen."""

    def job(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        """A family has used this fraction of its budget."""

    def failed(self, failure: FailedFamily) -> None:
        """A family has failed; the others continue."""

    def stage(self, label: str, fraction: float) -> None:
        """Progress of a stage before or after training."""


@contextlib.contextmanager
def comparison_progress(console: Console | None = None) -> Iterator[ComparisonListener]:
    """A listener that shows progress on the console, by default standard error."""
    from rich.console import Console

    console = console or Console(stderr=True)
    if console.is_terminal:
        bars = ComparisonBars(console)
        with bars.bars:
            yield bars
    else:
        lines = ComparisonLines(console)
        try:
            yield lines
        finally:
            lines.lines.end()


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """Show the progress of a comparison unless the caller listens himself or silences it with progress=False."""

    @functools.wraps(function)
    def shown(*arguments: P.args, **options: P.kwargs) -> R:
        if options.get("listener") is not None or not options.get("progress", True):
            return function(*arguments, **options)
        with comparison_progress() as listener:
            options["listener"] = listener
            return function(*arguments, **options)

    return shown


class ComparisonBars(ComparisonListener):
    """A bar for each family, then one for each stage after training."""

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

    def note(self, line: str) -> None:
        self.console.print(f"note: {line}", highlight=False, markup=False, soft_wrap=True)

    def planned(self, plan: ComparisonPlan) -> None:
        self.console.print(f"{len(plan.jobs)} models, {plan.budget}", highlight=False)
        for job in plan.jobs:
            self.tasks[job.name] = self.bars.add_task(job.name, total=1.0, status="waiting")

    def job(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        status = progress_line(dict(record)) if fraction < 1 else "done"
        self.bars.update(self.tasks[name], completed=fraction, status=status)

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


class ComparisonLines(ComparisonListener):
    """A line for the plan, for each family that is done, for each stage, and every 30 seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lines = LogLines(console, watch=True)
        self.fractions: dict[str, float] = {}

    def note(self, line: str) -> None:
        self.lines.note(line)

    def planned(self, plan: ComparisonPlan) -> None:
        self.lines.end()
        self._print(f"{len(plan.jobs)} models, {plan.budget}")
        self.fractions = {job.name: 0.0 for job in plan.jobs}
        self.lines.begin("training")

    def job(self, name: str, fraction: float, record: Mapping[str, Any]) -> None:
        if fraction >= 1 > self.fractions[name]:
            self._print(f"{name}: trained and scored")
        self.fractions[name] = fraction
        running = ", ".join(f"{family} {done:.0%}" for family, done in self.fractions.items() if 0 < done < 1)
        self.lines.update(sum(self.fractions.values()) / len(self.fractions), {"stage": running})

    def failed(self, failure: FailedFamily) -> None:
        self._print(f"{failure.name} failed: {failure.reason}")

    def stage(self, label: str, fraction: float) -> None:
        if label != self.lines.label:
            self.lines.end()
            self.lines.begin(label)
        self.lines.update(fraction, {})

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
