"""What all ways of decoding are asked to do, and what a way is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.text import file_identity
from chainrule.runs import Run


class Quality(Settings):
    """How good it is what a way writes."""

    figures: dict[str, float] = Field(description="the first is the one that is drawn")
    signatures: dict[str, str] = Field({}, description="how figures were computed, where that has a name")


class Output(NamedTuple):
    """What was written of one item."""

    content: Hashable  # the same where the same was written
    tokens: int


class Way(ABC):
    """One way to decode with one run."""

    def __init__(self, run: str, family: str, label: str, *, twin: str | None = None) -> None:
        self.run = run
        self.family = family
        self.label = label
        self.twin = twin  # label of the way, of the same run, whose output this one must equal

    @property
    def name(self) -> str:
        return f"{self.run} {self.label}"

    @property
    def twin_name(self) -> str | None:
        return None if self.twin is None else f"{self.run} {self.twin}"

    @abstractmethod
    def write(self, items: Sequence[int], batch: int) -> list[Output]:
        """Do some items of the task, `batch` of them at a time."""

    @abstractmethod
    def assess(self) -> Quality:
        """How good it is what this way writes."""


class Task(ABC):
    """A number of items that every way can do, and what they are measured by."""

    item: ClassVar[str]  # what one of them is called
    rate: ClassVar[str]  # what is counted by the second in charts: items, or "tokens"
    measure: ClassVar[str]  # the figure of quality that charts show
    more_is_better: ClassVar[bool]

    runs: Sequence[Run]
    ways: Sequence[Way]
    items: int  # how many there are

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader must know of the task, in plain values."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What makes it this task and no other: plain values by the names that a user knows them by."""


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's folder, or its whole path where two folders have one name."""
    counts = Counter(run.path.name for run in runs)
    return [run.path.name if counts[run.path.name] == 1 else str(run.path) for run in runs]


def run_identity(run: Run) -> list[object]:
    """Another one when the run is trained anew."""
    return list(file_identity(run.path / "model.safetensors"))


def runs_fact(names: Sequence[str], runs: Sequence[Run]) -> Mapping[str, str]:
    """Which runs took part."""
    return {name: f"{run.config.family}, {run.path}" for name, run in zip(names, runs, strict=True)}
