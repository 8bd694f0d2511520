"""Progress of a run: listeners, the progress line of the terminal, and records in metrics.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from chainrule.errors import MissingExtra
from chainrule.metrics import PROGRESS, metric
from chainrule.training.checkpoint import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

Record = dict[str, Any]


class Reporter:
    """Receives the progress of a run. This class ignores everything; subclasses override what they need."""

    def begin(self, label: str) -> None:
        """A stage of the work starts."""

    def preparing(self, stage: str, done: int, total: int) -> None:
        """The data is being read and encoded."""

    def note(self, text: str) -> None:
        """A message to the user."""

    def update(self, progress: float | None, record: Record) -> None:
        """A step, or a part of the stage, is done; `progress` is its fraction, None if the total is not known."""

    def validated(self, record: Record) -> None:
        """The validation data has been scored."""

    def end(self) -> None:
        """The stage has ended."""


def console_reporter(console: Console | None = None, *, announce_after: float = 0.0) -> Reporter:
    """A progress bar on a terminal; lines of text elsewhere. By default on standard error.

    Lines of text begin after `announce_after` seconds, so that what is done before that leaves no trace in a log.
    """
    from rich.console import Console

    console = console or Console(stderr=True)
    if console.is_terminal:
        return LiveLine(console)
    return LogLines(console, announce_after=announce_after, watch=True)


Fraction: TypeAlias = Callable[[float], None]
"""Receives the fraction of a stage that is done."""

ANNOUNCED_AFTER = 1.0  # seconds; what is faster leaves no trace in a log


@contextlib.contextmanager
def shown_fraction(
    progress: Fraction | bool | None, label: str, console: Console | None = None
) -> Iterator[Fraction | None]:
    """The receiver of a stage's progress: a given one, for True one that shows it, for False and None none."""
    if not isinstance(progress, bool) or not progress:
        yield None if isinstance(progress, bool) else progress
        return
    reporter = console_reporter(console, announce_after=ANNOUNCED_AFTER)
    reporter.begin(label)
    reporter.update(None, {})
    try:
        yield lambda share: reporter.update(share, {})
    finally:
        reporter.end()


SECONDS_BETWEEN_LINES = 30.0


class LogLines(Reporter):
    """Progress as lines of text, for pipes and log files: at the start of a stage, every 30 seconds, and at its end.

    Stages of less than a second have no last line, and one that is repeated is announced once. With `watch`, a thread
    prints the lines of a stage that reports nothing itself.
    """

    def __init__(
        self,
        console: Console,
        *,
        clock: Callable[[], float] = time.monotonic,
        announce_after: float = 0.0,
        watch: bool = False,
    ) -> None:
        self.console = console
        self.clock = clock
        self.announce_after = announce_after
        self.watch = watch
        self.label = self.announced = ""
        self.progress: float | None = 0.0
        self.metrics = ""
        self.began = self.printed = clock()
        self._ended = threading.Event()
        self._lock = threading.RLock()

    def begin(self, label: str) -> None:
        self._ended.set()
        with self._lock:
            self.label, self.progress, self.metrics = label, 0.0, ""
            self.began = self.printed = self.clock()
            if not self.announce_after:
                self._announce()
        if self.watch:
            self._ended = threading.Event()
            threading.Thread(target=self._watch, args=(self._ended,), daemon=True).start()

    def preparing(self, stage: str, done: int, total: int) -> None:
        if stage != self.label:
            self.begin(stage)
        self.update(done / max(1, total), {})
        if done >= total:
            self.end()

    def note(self, text: str) -> None:
        self._print(f"note: {text}")

    def update(self, progress: float | None, record: Record) -> None:
        with self._lock:
            self.progress = progress
            self.metrics = progress_line(record) or self.metrics
            self._print_if_due()

    def validated(self, record: Record) -> None:
        self._print(f"step {record['step']}: {progress_line(record)}")

    def end(self) -> None:
        self._ended.set()
        interrupted = sys.exc_info()[0] is not None  # an error or Ctrl-C has its own line
        with self._lock:
            if self.label and not interrupted and self.clock() - self.began >= 1.0 and self.announced == self.label:
                done = self.progress is None or self.progress >= 1.0
                self._line("done" if done else f"ended at {self.progress:.0%}")
            self.label = ""

    def _watch(self, ended: threading.Event) -> None:
        """Print what is due while the stage itself computes."""
        while not ended.wait(1.0):
            with self._lock:
                if not ended.is_set():
                    self._print_if_due()

    def _print_if_due(self) -> None:
        now = self.clock()
        if self.announced != self.label and now - self.began >= self.announce_after:
            self._announce()
        if now - self.printed >= SECONDS_BETWEEN_LINES:
            self._line("" if self.progress is None else f"{min(self.progress, 1.0):.0%}")

    def _announce(self) -> None:
        if self.label != self.announced:
            self._print(self.label)
        self.announced = self.label

    def _line(self, state: str) -> None:
        reached = ", ".join(filter(None, [state, f"{self.clock() - self.began:,.0f} s"]))
        parts = [f"{self.label}: {reached}", *filter(None, [self.metrics])]
        self._print(" · ".join(parts))
        self.printed = self.clock()

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveLine(Reporter):
    """A progress bar in the terminal, with loss, bits/byte, tokens/s and the time left."""

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

    def update(self, progress: float | None, record: Record) -> None:
        total = None if progress is None else 1.0
        self.bar.update(self.task, total=total, completed=progress, metrics=progress_line(record))

    def end(self) -> None:
        self.bar.stop()


def progress_line(record: Record) -> str:
    """Return the metrics of a record as one short line, after what is being done if the record says so."""
    metrics = (metric(key)(record[key]) for key in PROGRESS if record.get(key) is not None)
    return " · ".join([*filter(None, [record.get("stage")]), *metrics])


class Recorder:
    """Writes metrics.jsonl, and TensorBoard event files if train.tensorboard is set."""

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
