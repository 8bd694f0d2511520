"""One text, or many documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, final

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import Documents, Lanes, Windows
from chainrule.data.corpus import Corpus, Prepared
from chainrule.errors import ConfigError
from chainrule.interface.base import NeuralModel, Trainable
from chainrule.material.base import HeldOut, Lessons, Material
from chainrule.training.learner import CarriedSegments, WholeSequences
from chainrule.training.progress import Record, Reporter


def text_splits(config: DataConfig, valid: Corpus, test: Corpus | None) -> dict[str, HeldOut]:
    """Texts that are held out."""
    found = {"validation": HeldOut(valid, None, config.named("validation"))}
    return found if test is None else found | {"test": HeldOut(test, None, config.named("test"))}


class OneText(Material):
    """A text or many documents, whatever is learnt from them."""

    def __init__(self, prepared: Prepared, config: RunConfig) -> None:
        self.tokenizer, self.corpus, self.warnings = prepared.tokenizer, prepared.train, prepared.warnings
        self.held_out = text_splits(config.data, prepared.valid, prepared.test)
        self.watched = self.held_out["validation"]
        self.prepared, self.config = prepared, config

    @property
    def vocabularies(self) -> dict[str, int]:
        return {"vocabulary": self.tokenizer.vocabulary}

    def settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": self.prepared.train.unit})

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        return dict

    def reversed(self) -> Self:
        train, valid, test = self.prepared.train, self.prepared.valid, self.prepared.test
        prepared = self.prepared._replace(
            train=reversed_corpus(train),
            valid=reversed_corpus(valid),
            test=None if test is None else reversed_corpus(test),
        )
        return type(self)(prepared, self.config)


@final
class TextMaterial(OneText):
    """Texts to predict, each token from those before it."""

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        """By documents, by windows where a model has a context, else by lanes."""
        assert isinstance(model, NeuralModel)
        settings, corpus = config.train, self.corpus
        length = settings.segment or model.segment
        rows = max(1, settings.batch_tokens // length)
        if corpus.unit == "documents":
            longest = model.context if model.context is not None else settings.segment
            return Lessons(Documents(corpus, settings.batch_tokens, longest, config.seed), WholeSequences)
        if model.context is None:
            return Lessons(Lanes(corpus, rows, length, config.seed), CarriedSegments)
        if length > model.context:
            raise ConfigError(
                f"train.segment {length} is longer than model.context {model.context}; lower the one or raise the other"
            )
        return Lessons(Windows(corpus, rows, length, config.seed), WholeSequences)
