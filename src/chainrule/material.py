"""What a model learns from and is measured by: a text, or pairs of texts. The training itself need not know which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self, final

from chainrule.compose import kind
from chainrule.compose.reverse import turned_corpus
from chainrule.config import DataConfig, RunConfig, TrainConfig
from chainrule.data.batching import Documents, Feed, Lanes, Pairs, Windows
from chainrule.data.corpus import Corpus, Prepared, prepare
from chainrule.data.parallel import PairedCorpus, PairTokenizers, PreparedPairs, Rewrite, prepare_pairs
from chainrule.decoding.sentences import Translator
from chainrule.decoding.translation import Search
from chainrule.distillation import distilled
from chainrule.errors import ConfigError, MissingExtra
from chainrule.evaluation.likelihood import protocol_for, score
from chainrule.evaluation.translation import corpus_scores
from chainrule.models.base import NeuralModel
from chainrule.models.conditional import Conditional, EmbeddingConfig, ParallelModel
from chainrule.models.shortlist import Surveys
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import CarriedSegments, NextTokens, WholeSequences
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

    @property
    @abstractmethod
    def vocabularies(self) -> dict[str, int]:
        """The settings of a model that follow from the data."""

    @abstractmethod
    def settings(self, config: DataConfig) -> DataConfig:
        """The settings with all that was found out about the data."""

    @abstractmethod
    def lessons(self, model: NeuralModel | ParallelModel, config: RunConfig, reporter: Reporter) -> Lessons:
        """How the data is fed to a model."""

    @abstractmethod
    def measure(self, model: NeuralModel | ParallelModel, config: RunConfig) -> Callable[[], Record]:
        """Figures of the model at each validation, beyond its likelihood."""

    @abstractmethod
    def turned(self) -> Self:
        """For a model that reads from the end to the start."""

    def lay_out(self, folder: RunFolder, config: RunConfig) -> None:
        """Write what stands before the first step."""
        folder.lay_out(config, self.tokenizer, self.source_tokenizer)

    @final
    def validate(self, model: NeuralModel | ParallelModel, settings: TrainConfig) -> float:
        """A quick look while training: a part of the validation data, read in parallel, windows without overlap."""
        corpus, source, _ = self.watched
        protocol = protocol_for(
            model, corpus, stride=model.context, pieces=VALIDATION_PIECES, tokens=settings.validate_tokens
        )
        return score(model, corpus, protocol, source=source).nats_per_token


def open_material(config: RunConfig, reporter: Reporter, *, stored: RunFolder | None = None) -> Material:
    """Prepare what the family learns from; a run that goes on has its vocabularies already."""
    if issubclass(kind(config.family), Conditional):
        known = None if stored is None else PairTokenizers(stored.source_tokenizer(), stored.tokenizer())
        pairs = prepare_pairs(
            config.data,
            config.tokenizer,
            config.source_tokenizer,
            tokenizers=known,
            rewrite=_rewrite(config, reporter),
            progress=reporter.preparing,
        )
        return PairMaterial(pairs)
    _refuse_pairs(config)
    prepared = prepare(
        config.data,
        config.tokenizer,
        tokenizer=None if stored is None else stored.tokenizer(),
        progress=reporter.preparing,
    )
    return TextMaterial(prepared, config.data)


def _rewrite(config: RunConfig, reporter: Reporter) -> Rewrite | None:
    """Where the run is to learn from another one."""
    teacher = config.data.distil_from
    if teacher is None:
        return None
    progress = partial(reporter.preparing, f"translating by {Path(teacher).name}")
    return lambda pairs: distilled(pairs, teacher, device=config.device, progress=progress)


def _refuse_pairs(config: RunConfig) -> None:
    given = {
        "data.source": config.data.source,
        "data.valid_source": config.data.valid_source,
        "data.test_source": config.data.test_source,
        "data.distil_from": config.data.distil_from,
        "source_tokenizer": config.source_tokenizer,
        "train.validate_bleu": config.train.validate_bleu,
    }
    for name, value in given.items():
        if value:
            raise ConfigError(
                f"{config.family} is a model of one text, and {name} is about pairs; leave it out, or train a "
                "translation family (chainrule models lists them)"
            )


def text_splits(config: DataConfig, valid: Corpus, test: Corpus | None) -> dict[str, HeldOut]:
    """Texts that are held out."""
    found = {"validation": HeldOut(valid, None, config.named("validation"))}
    return found if test is None else found | {"test": HeldOut(test, None, config.named("test"))}


@final
class TextMaterial(Material):
    """One text, or many documents."""

    def __init__(self, prepared: Prepared, config: DataConfig) -> None:
        self.tokenizer, self.corpus, self.warnings = prepared.tokenizer, prepared.train, prepared.warnings
        self.held_out = text_splits(config, prepared.valid, prepared.test)
        self.watched = self.held_out["validation"]
        self._prepared, self._config = prepared, config

    @property
    def vocabularies(self) -> dict[str, int]:
        return {"vocabulary": self.tokenizer.vocabulary}

    def settings(self, config: DataConfig) -> DataConfig:
        return config.model_copy(update={"unit": self.corpus.unit})

    def lessons(self, model: NeuralModel | ParallelModel, config: RunConfig, reporter: Reporter) -> Lessons:
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

    def measure(self, model: NeuralModel | ParallelModel, config: RunConfig) -> Callable[[], Record]:
        return dict

    def turned(self) -> TextMaterial:
        train, valid, test = self._prepared.train, self._prepared.valid, self._prepared.test
        prepared = self._prepared._replace(
            train=turned_corpus(train), valid=turned_corpus(valid), test=None if test is None else turned_corpus(test)
        )
        return TextMaterial(prepared, self._config)


@final
class PairMaterial(Material):
    """Sources and their translations."""

    source_tokenizer: Tokenizer

    def __init__(self, prepared: PreparedPairs) -> None:
        self.source_tokenizer, self.tokenizer = prepared.tokenizers
        self.corpus, self.warnings = prepared.train.target, prepared.warnings
        splits = {"validation": prepared.valid, "test": prepared.test}
        self.held_out = {
            name: HeldOut(pairs.target, pairs.source, prepared.names[name])
            for name, pairs in splits.items()
            if pairs is not None
        }
        self.watched = self.held_out["validation"]._replace(
            corpus=prepared.watched.target, source=prepared.watched.source
        )
        self._prepared = prepared

    @property
    def vocabularies(self) -> dict[str, int]:
        return {"vocabulary": self.tokenizer.vocabulary, "source_vocabulary": self.source_tokenizer.vocabulary}

    def settings(self, config: DataConfig) -> DataConfig:
        language = config.target_language or self._prepared.languages.target or None
        return config.model_copy(update={"unit": "documents", "target_language": language})

    def lay_out(self, folder: RunFolder, config: RunConfig) -> None:
        super().lay_out(folder, config)
        folder.write_cleaning({split: asdict(report) for split, report in self._prepared.reports.items()})

    def lessons(self, model: NeuralModel | ParallelModel, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, Conditional)
        self._require_one_vocabulary(model)
        if isinstance(model, Surveys):
            model.survey(self._prepared.train.ids())
        feed = Pairs(
            self._prepared.train,
            config.train.batch_tokens,
            config.seed,
            longest=(model.source_context, model.context),
        )
        if feed.left_out:
            reporter.note(
                f"{feed.left_out:,} of {self._prepared.train.pairs:,} training pairs have more tokens than the model "
                "can read and are left out; raise model.context to learn from them"
            )
        return Lessons(feed, WholeSequences)

    def _require_one_vocabulary(self, model: NeuralModel | ParallelModel) -> None:
        """One table of embeddings for two vocabularies of equal size would be one word for another."""
        shared = isinstance(model.config, EmbeddingConfig) and model.config.shared_embeddings
        if shared and self.source_tokenizer.to_json() != self.tokenizer.to_json():
            raise ConfigError(
                "model.shared_embeddings needs one vocabulary, and each side has its own; leave out data.separate and "
                "source_tokenizer, or set model.shared_embeddings=false"
            )

    def measure(self, model: NeuralModel | ParallelModel, config: RunConfig) -> Callable[[], Record]:
        """BLEU and chrF of greedy translations of the first validation pairs."""
        there = find_spec("sacrebleu") is not None
        if config.train.validate_bleu and not there:
            raise MissingExtra("BLEU at validations", "translation")
        if config.train.validate_bleu is False or not there:
            return dict
        sources, references = zip(*self._prepared.shown, strict=True)
        translator = Translator(model, self.source_tokenizer, self.tokenizer)
        # Twice as long as translations are: a model that has not yet learnt to stop should not take long over it.
        valid = self._prepared.valid
        search = Search(beam=1, growth=2 * len(valid.target) / len(valid.source), slack=10)

        def figures() -> Record:
            found = translator.translate(sources, search, batch=len(sources))
            scores = corpus_scores(
                [best.text for best, *_ in found], references, target_language=config.data.target_language or ""
            )
            return {name if name.endswith("signature") else f"valid_{name}": value for name, value in scores.items()}

        return figures

    def turned(self) -> PairMaterial:
        """Translations are written from their end; sources stay as they are."""

        def turn(pairs: PairedCorpus) -> PairedCorpus:
            return replace(pairs, target=turned_corpus(pairs.target))

        test = self._prepared.test
        return PairMaterial(
            self._prepared._replace(
                train=turn(self._prepared.train),
                valid=turn(self._prepared.valid),
                watched=turn(self._prepared.watched),
                test=None if test is None else turn(test),
            )
        )
