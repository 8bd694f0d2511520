"""What `chainrule compare` needs to know of a task: its data, the models that are compared, and its metrics.

ComparisonData          the data of a comparison, and the entries that are compared on it
├── SequenceComparison  text and images (tasks.sequences): metrics are likelihoods
└── ExampleComparison   labels and pairs: metrics of the task beside the likelihood
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from chainrule.config import DataConfig
from chainrule.data.corpus import Corpus, Report
from chainrule.deadline import Deadline
from chainrule.errors import ConfigError
from chainrule.families import family
from chainrule.tasks.base import Run
from chainrule.tasks.training_data import TrainingData
from chainrule.tokenizers import Tokenizer

OWN_SPLIT = ""
"""The spec of test data that are found together with the training data."""
Unit = Literal["byte", "dim", "label"]
Statistics = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """A model that is compared: a family with settings."""

    family: str
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""  # in one line; by default that of the family
    taught: bool = False  # whether it is trained on the translations of the best other model


class TaskMetric(NamedTuple):
    """A metric of predictions, computed from sums of statistics, so that examples can be resampled."""

    key: str
    name: str
    digits: int
    statistics: Statistics  # (N, K), of each example
    value: Callable[[Statistics], Statistics]  # (R, K) sums of the statistics -> (R,) values


class ComparisonData(ABC):
    """The encoded data that models of a task are compared on; metrics are computed on `test`."""

    task: ClassVar[str]  # the `Model.task` of the families made for this data
    unit: ClassVar[Unit]
    vocabulary: int
    tokenizer: Tokenizer | None = None  # None if the tokens are not text
    tokens_per_image: int | None = None
    train: Corpus
    valid: Corpus
    test: Corpus
    warnings: tuple[str, ...]  # about the data, one line each

    @abstractmethod
    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None: ...

    @classmethod
    def default_tokenizer(cls, config: DataConfig) -> str:
        """The tokenizer for this data unless the user gives one."""
        return "chars"

    @classmethod
    @abstractmethod
    def own_test(cls, config: DataConfig) -> str | None:
        """The spec of the test split that comes with the training data, if there is one."""

    @classmethod
    @abstractmethod
    def families(cls) -> list[str]:
        """Names of the models that can be compared on this data."""

    @classmethod
    def default_families(cls) -> list[str]:
        """Names of the models that are compared unless the user lists others."""
        kinds = {name: family(name) for name in cls.families()}
        return [name for name, kind in kinds.items() if kind.task == cls.task or cls.task in kind.compared_on]

    @classmethod
    def entries(cls, encoders: Sequence[str] = ()) -> dict[str, Entry]:
        """All models that can be compared, by name: one per family, unless a task has several of a family."""
        if encoders:
            raise ConfigError("--encoder is for comparisons of labels; remove it")
        return cls.known_entries()

    @classmethod
    def known_entries(cls) -> dict[str, Entry]:
        """The models of `families`."""
        return {name: Entry(name) for name in cls.families()}

    @abstractmethod
    def data_config(self, config: DataConfig) -> DataConfig:
        """`config` with everything that was detected in the data filled in."""


class ExampleComparison(ComparisonData):
    """Labels or translations to predict from texts: models are ranked by the first metric of the task."""

    names: Mapping[str, str]  # of the held-out data in reports
    metric_names: ClassVar[tuple[str, ...]]  # as the report writes them, the deciding one first
    activity: ClassVar[str]  # what the best model does best: "labels these texts"
    scoring_fraction: ClassVar[float]  # of the time of a model, for scoring and predicting
    model_settings: Mapping[str, Any]  # that follow from the data: vocabulary sizes
    train_tokens: int  # that a model reads in an epoch, those of the texts included

    @classmethod
    def default_families(cls) -> list[str]:
        return cls.families()

    @classmethod
    @abstractmethod
    def predict(cls, run: Run, data: TrainingData[Any, Any], deadline: Deadline) -> list[Any]:
        """The predictions for the test examples from the first on, as many as the time allows."""

    @abstractmethod
    def metrics(self, predictions: Sequence[Any]) -> list[TaskMetric]:
        """The metrics of predictions for the first test examples, the deciding one first."""

    @abstractmethod
    def described(self) -> dict[str, str]:
        """How predictions were made and measured, for the protocol."""
