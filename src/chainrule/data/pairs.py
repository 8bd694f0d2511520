"""What every source of pairs can do: a text and its translation, again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Split = Literal["validation", "test"]


class Pair(NamedTuple):
    """A source and its translation, or anything else that both of them have one of."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class PairSource(ABC):
    """A spec of parallel data that has been understood."""

    spec: str  # what a reader knows it by

    @abstractmethod
    def identity(self) -> tuple[object, ...]:
        """Plain values that change whenever the pairs do, found without reading them if possible."""

    @abstractmethod
    def origins(self) -> frozenset[str]:
        """Names of what the pairs come from, by which two sources can be seen to overlap."""

    @abstractmethod
    def pairs(self) -> Iterator[Pair]:
        """Every pair as it stands, those with an empty side too."""

    @property
    def languages(self) -> Pair:
        """The codes of both languages, each empty where nothing tells."""
        return Pair("", "")

    def held_out(self, split: Split) -> PairSource | None:
        """The validation or test data that comes with this training data, if it does."""
        return None
