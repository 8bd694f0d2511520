"""What is measured: decoding methods, and the workload that all of them process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from chainrule.config import Settings
from chainrule.data.text import file_identity
from chainrule.interface.capabilities import Branched
from chainrule.tasks.base import Run


class Quality(Settings):
    """Quality of the output of a decoding method."""

    metrics: dict[str, float] = Field(description="by name; the first is the one in the charts")
    signatures: dict[str, str] = Field({}, description="how metrics were computed, for those that have a signature")


class DecodedItem(NamedTuple):
    """Output for one item."""

    content: Hashable  # equal for equal outputs
    tokens: int


class DecodingMethod(ABC):
    """One way to decode with one run: a search or sampling method, with or without a draft."""

    def __init__(self, run: str, family: str, label: str, *, reference: str | None = None) -> None:
        self.run = run
        self.family = family
        self.label = label
        self.reference = reference  # label of the method of the same run whose output this one must equal

    @property
    def name(self) -> str:
        return f"{self.run} {self.label}"

    @property
    def reference_name(self) -> str | None:
        return None if self.reference is None else f"{self.run} {self.reference}"

    @abstractmethod
    def decode(self, items: Sequence[int], batch: int) -> list[DecodedItem]:
        """Decode the items with these indices, `batch` of them at a time."""

    @abstractmethod
    def measure_quality(self) -> Quality:
        """Quality on all items."""


class Workload(ABC):
    """Items that every decoding method can process, and the metrics they are evaluated by."""

    item: ClassVar[str]  # name of an item: "sentence", "text"
    throughput: ClassVar[str]  # what charts count per second: the items or "tokens"
    metric: ClassVar[str]  # the quality metric in charts
    higher_is_better: ClassVar[bool]

    runs: Sequence[Run]
    methods: Sequence[DecodingMethod]
    size: int  # number of items

    @abstractmethod
    def protocol(self) -> dict[str, Any]:
        """What a reader must know about the workload, as plain values."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What distinguishes this workload from others, as plain values; the keys appear in error messages."""


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's folder, or its whole path where two folders have the same name."""
    counts = Counter(run.path.name for run in runs)
    return [run.path.name if counts[run.path.name] == 1 else str(run.path) for run in runs]


BRANCHES = (0.0, 1.0)


def gammas_of(run: Run, gammas: Sequence[float]) -> list[float | None]:
    """The values of γ at which a run is measured: its own, and those given if it is a hybrid."""
    model = run.model
    return [None, *gammas] if isinstance(model, Branched) and model.fixed_gamma is None else [None]


def run_identity(run: Run) -> list[object]:
    """A value that changes when the run is trained again."""
    return list(file_identity(run.path / "model.safetensors"))


def run_descriptions(names: Sequence[str], runs: Sequence[Run]) -> Mapping[str, str]:
    """Family and path of each run, by name."""
    return {name: f"{run.config.family}, {run.path}" for name, run in zip(names, runs, strict=True)}
