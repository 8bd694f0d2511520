"""The data of a run as training sees it: batches to learn from, and what is held out to measure by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

from chainrule.config import DataConfig, RunConfig, TrainConfig
from chainrule.data.batching import Feed
from chainrule.data.corpus import Corpus
from chainrule.evaluation.likelihood import protocol_for, score
from chainrule.interface.base import DensityModel, Trainable
from chainrule.runs import Run
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import NextTokens
from chainrule.training.progress import Record, Reporter

VALIDATION_PIECES = 16  # parts of a stream that are validated side by side while training


class Lessons(NamedTuple):
    """Batches, and what learns from such batches."""

    feed: Feed[Any]
    learner: type[NextTokens]  # unless the model brings its own objective


class HeldOut(NamedTuple):
    """Data to measure a model by."""

    corpus: Corpus  # what is to be predicted
    source: Corpus | None  # what it is predicted from, document by document, where there is such a thing
    name: str  # what a reader should know it by


class Material(ABC):
    """The data of a run, encoded."""

    tokenizer: Tokenizer  # of what is predicted
    source_tokenizer: Tokenizer | None = None
    corpus: Corpus  # what is predicted in training
    held_out: dict[str, HeldOut]  # "validation", and "test" where there is one
    watched: HeldOut  # what training validates by
    warnings: tuple[str, ...]
    unit: ClassVar[str] = "byte"  # what bits are counted by, beside tokens

    @property
    @abstractmethod
    def vocabularies(self) -> Mapping[str, Any]:
        """The settings of a model that follow from the data."""

    @property
    def bytes_per_token(self) -> float | None:
        """What turns nats per token into bits per byte; none where a loss is not about all of a text."""
        return self.corpus.bytes_per_token

    @abstractmethod
    def settings(self, config: DataConfig) -> DataConfig:
        """The settings with all that was found out about the data."""

    @abstractmethod
    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        """How the data is fed to a model."""

    @abstractmethod
    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        """Figures of the model at each validation, beyond its likelihood."""

    @abstractmethod
    def reversed(self) -> Self:
        """For a model that reads from the end to the start."""

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        """Write what stands before the first step."""
        folder.create(config, self.tokenizer, self.source_tokenizer)

    def validate(self, model: Trainable, settings: TrainConfig) -> float:
        """A quick look while training: a part of the validation data, read in parallel, windows without overlap."""
        assert isinstance(model, DensityModel)
        corpus, source, _ = self.watched
        protocol = protocol_for(
            model, corpus, stride=model.context, pieces=VALIDATION_PIECES, tokens=settings.validate_tokens
        )
        return score(model, corpus, protocol, source=source).nats_per_token

    def score(self, run: Run, reporter: Reporter) -> None:
        """The numbers that the card shows, when training has ended."""
        score_splits(run, self.held_out, reporter)


def score_splits(run: Run, held_out: Mapping[str, HeldOut], reporter: Reporter) -> None:
    """Whole splits, by the usual protocol."""
    assert isinstance(run.model, DensityModel)
    for split, (corpus, source, name) in held_out.items():
        reporter.begin(f"scoring the {split} data")
        try:
            result = score(run.model, corpus, source=source, progress=lambda share: reporter.update(share, {}))
        finally:
            reporter.end()
        run.keep_score(result, corpus, name, split=split)
