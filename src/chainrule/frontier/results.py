"""What was measured, and what it says, as plain values: the contents of measurements.json and results.json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chainrule.config import Settings
from chainrule.frontier.task import Quality


class Failure(Settings):
    """A point that could not be measured."""

    name: str = Field(description="of the way")
    batch: int | None = Field(None, description="none: its quality is missing")
    reason: str


class Clocked(Settings):
    """What one way did in one turn."""

    seconds: float
    tokens: int
    compared: int = Field(0, description="of them, those that were held against what another way has written")
    different: int = Field(0, description="items that were not the same")


class Measurements(Settings):
    """All that has been measured so far, for the same command to go on from."""

    asked: dict[str, Any] = Field(description="what the command was about; another command must not go on from here")
    quality: dict[str, Quality] = Field({}, description="by the name of the way")
    counts: dict[int, int] = Field({}, description="batch size -> items that each way does in a turn")
    turns: dict[int, list[dict[str, Clocked]]] = Field({}, description="batch size -> turns, by the name of the way")
    failures: list[Failure] = Field([], description="the points that are missing, and why")

    def with_quality(self, name: str, quality: Quality) -> Measurements:
        return self.model_copy(update={"quality": {**self.quality, name: quality}})

    def with_count(self, batch: int, count: int) -> Measurements:
        return self.model_copy(update={"counts": {**self.counts, batch: count}})

    def with_turn(self, batch: int, turn: dict[str, Clocked]) -> Measurements:
        return self.model_copy(update={"turns": {**self.turns, batch: [*self.turns.get(batch, []), turn]}})

    def with_failure(self, failure: Failure) -> Measurements:
        return self.model_copy(update={"failures": [*self.failures, failure]})

    def hopeful(self) -> Measurements:
        """Without the failures that may be mended by now: quality is tried again."""
        return self.model_copy(update={"failures": [one for one in self.failures if one.batch is not None]})

    def failed(self, name: str, batch: int | None) -> bool:
        return any((one.name, one.batch) == (name, batch) for one in self.failures)


class Speed(Settings):
    """How fast a way is at one batch size: medians over the turns."""

    batch: int
    items_per_second: float
    interval: tuple[float, float] = Field(description="the middle half of the turns")
    tokens_per_second: float
    times: float | None = Field(description="as fast as the baseline, within a turn; none: that one failed")
    turns: int
    compared: int = Field(0, description="tokens that were held against those of the way in `same_as`, in all turns")
    different: int = Field(0, description="items of a turn that were not the same, at most")

    def rate(self, what: str) -> float:
        """Tokens a second, or items of any other name."""
        return self.tokens_per_second if what == "tokens" else self.items_per_second


class Row(Settings):
    """One way of decoding."""

    name: str
    run: str
    family: str
    way: str
    same_as: str | None = Field(None, description="the way of the same run that writes the same")
    quality: dict[str, float] = Field({}, description="figures by name")
    speeds: list[Speed] = Field([], description="one a batch size")

    def speed(self, batch: int) -> Speed | None:
        return next((speed for speed in self.speeds if speed.batch == batch), None)


class Results(Settings):
    """Quality against speed."""

    item: str = Field(description="what is counted: sentence or text")
    rate: str = Field(description="what is drawn by the second")
    measure: str = Field(description="the figure of quality that is drawn")
    more_is_better: bool
    baseline: str = Field(description="the way that all others are compared with")
    batches: list[int]
    rows: list[Row]
    failures: list[Failure] = Field([], description="the points that are missing, and why")
    findings: list[str] = Field([], description="a sentence for each batch size")
    complete: bool = Field(description="whether all has been measured that was asked for")
    threads: int
    machine: str
    version: str
    created: str = Field(description="ISO 8601")
    command: str = Field(description="what reproduces it")
    protocol: dict[str, Any]

    def merit(self, row: Row) -> float:
        """The quality of a way that has one, such that more is better."""
        return row.quality[self.measure] if self.more_is_better else -row.quality[self.measure]
