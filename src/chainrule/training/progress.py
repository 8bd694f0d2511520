"""What a run tells while it goes on: a live line for people, records for machines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule.errors import MissingExtra
from chainrule.metrics import PROGRESS, metric
from chainrule.training.checkpoint import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

Record = dict[str, Any]


class Reporter:
    """Someone who is told how a run is going. This one does not listen; a subclass hears what it overrides."""

    def begin(self, label: str) -> None:
        """A stage of the work begins."""

    def preparing(self, stage: str, done: int, total: int) -> None:
        """The data is being read and encoded."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def update(self, progress: float, record: Record) -> None:
        """A step was made, or a piece of the work is done."""

    def validated(self, record: Record) -> None:
        """Validation data was scored."""

    def end(self) -> None:
        """The stage is over."""


class LiveLine(Reporter):
    """One line in the terminal: share done, loss, bits/byte, tokens/s, time left."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=4,
            transient=True,
        )
        self.task = self.bar.add_task("training", total=1.0, metrics="", visible=False)

    def begin(self, label: str) -> None:
        self.bar.start()
        self.bar.reset(self.task, description=label, total=1.0, metrics="", visible=True)

    def preparing(self, stage: str, done: int, total: int) -> None:
        if not self.bar.live.is_started or self.bar.tasks[0].description != stage:
            self.begin(stage)
        self.update(done / max(1, total), {})
        if done >= total:
            self.end()

    def note(self, text: str) -> None:
        self.console.print(f"[yellow]note[/yellow] {text}")

    def update(self, progress: float, record: Record) -> None:
        self.bar.update(self.task, completed=progress, metrics=progress_line(record))

    def validated(self, record: Record) -> None:
        # A pipe or a log file shows no bar: there each validation leaves a line.
        if not self.console.is_terminal:
            self.console.print(f"step {record['step']}: {progress_line(record)}")

    def end(self) -> None:
        self.bar.stop()


def progress_line(record: Record) -> str:
    """Return the metrics of a record as one short line."""
    return " · ".join(metric(key)(record[key]) for key in PROGRESS if record.get(key) is not None)


class Recorder:
    """metrics.jsonl, and TensorBoard event files where the run asks for them."""

    def __init__(self, folder: RunFolder, *, tensorboard: bool) -> None:
        self.folder = folder
        self.events = _event_writer(folder.path / "tensorboard") if tensorboard else None

    def write(self, record: Record) -> None:
        self.folder.append("metrics.jsonl", record)
        if self.events is not None:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                    self.events.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self.events is not None:
            self.events.close()


def _event_writer(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtra("writing TensorBoard files", "tensorboard") from None
    return SummaryWriter(str(path))
