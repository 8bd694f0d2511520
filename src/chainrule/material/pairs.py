"""Sources and their translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import final

from chainrule.compose.reverse import reversed_corpus
from chainrule.config import DataConfig, RunConfig
from chainrule.data.batching import Pairs
from chainrule.data.parallel import PairedCorpus, PreparedPairs
from chainrule.decoding.translation import Search
from chainrule.decoding.translator import Translator
from chainrule.errors import ConfigError, MissingExtra
from chainrule.evaluation.translation import corpus_scores
from chainrule.interface.base import NeuralModel, Trainable
from chainrule.interface.capabilities import FitsStatistics
from chainrule.interface.conditional import Conditional, EmbeddingConfig, ParallelModel
from chainrule.material.base import HeldOut, Lessons, Material
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.learner import WholeSequences
from chainrule.training.progress import Record, Reporter


@final
class PairMaterial(Material):
    """Translations to predict from their sources."""

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

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        super().create(folder, config)
        folder.write_cleaning({split: asdict(report) for split, report in self._prepared.reports.items()})

    def lessons(self, model: Trainable, config: RunConfig, reporter: Reporter) -> Lessons:
        assert isinstance(model, Conditional)
        self._require_one_vocabulary(model)
        if isinstance(model, FitsStatistics):
            model.fit_statistics(self._prepared.train.ids())
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

    def _require_one_vocabulary(self, model: Trainable) -> None:
        """One table of embeddings for two vocabularies of equal size would be one word for another."""
        shared = isinstance(model.config, EmbeddingConfig) and model.config.shared_embeddings
        if shared and self.source_tokenizer.to_json() != self.tokenizer.to_json():
            raise ConfigError(
                "model.shared_embeddings needs one vocabulary, and each side has its own; leave out data.separate and "
                "source_tokenizer, or set model.shared_embeddings=false"
            )

    def measure(self, model: Trainable, config: RunConfig) -> Callable[[], Record]:
        """BLEU and chrF of greedy translations of the first validation pairs."""
        there = find_spec("sacrebleu") is not None
        if config.train.validate_bleu and not there:
            raise MissingExtra("BLEU at validations", "translation")
        if config.train.validate_bleu is False or not there:
            return dict
        sources, references = zip(*self._prepared.shown, strict=True)
        assert isinstance(model, NeuralModel | ParallelModel)
        translator = Translator(model, self.source_tokenizer, self.tokenizer)
        # Twice as long as translations are: a model that has not yet learnt to stop should not take long over it.
        valid = self._prepared.valid
        search = Search(beam=1, growth=2 * len(valid.target) / len(valid.source), slack=10)

        def figures() -> Record:
            found = translator.translate_texts(sources, search, batch=len(sources))
            scores = corpus_scores(
                [best.text for best, *_ in found], references, target_language=config.data.target_language or ""
            )
            return {name if name.endswith("signature") else f"valid_{name}": value for name, value in scores.items()}

        return figures

    def reversed(self) -> PairMaterial:
        """Translations are written from their end; sources stay as they are."""

        def turn(pairs: PairedCorpus) -> PairedCorpus:
            return replace(pairs, target=reversed_corpus(pairs.target))

        test = self._prepared.test
        return PairMaterial(
            self._prepared._replace(
                train=turn(self._prepared.train),
                valid=turn(self._prepared.valid),
                watched=turn(self._prepared.watched),
                test=None if test is None else turn(test),
            )
        )
