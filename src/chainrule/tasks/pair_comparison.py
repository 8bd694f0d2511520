"""Comparison of translation models on the same pairs, by BLEU and chrF."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, final

from chainrule.config import DataConfig
from chainrule.data.corpus import Report
from chainrule.data.pairs import open_pairs
from chainrule.data.parallel import pairs_as_text, prepare_pairs
from chainrule.deadline import Deadline
from chainrule.decoding import Search
from chainrule.evaluation.translation import corpus_scores, metrics, sentence_statistics
from chainrule.tasks.base import Run, require
from chainrule.tasks.comparing import OWN_SPLIT, Entry, ExampleComparison, TaskMetric
from chainrule.tasks.training_data import TrainingData
from chainrule.tasks.translation import TranslationRun

BATCH = 32  # sentences between two looks at the clock
PAIRS_PER_PIECE, FEWEST_PIECES, MOST_PIECES = 7, 500, 8000  # a vocabulary of bpe for so many pairs; 29,000: 4,000
SHORT_TARGET = 30  # characters, on average: dates, names, words
TRAIN = {"validate_bleu": False}  # the time of the budget is for training

ENTRIES = {
    "seq2seq": Entry("seq2seq", train=TRAIN),
    "seq2seq_without_attention": Entry(
        "seq2seq",
        {"attention": "none"},
        TRAIN,
        "Recurrent encoder–decoder whose decoder sees only the final state of the encoder.",
    ),
    "transformer": Entry("transformer", train=TRAIN),
    "autoregressive_transformer": Entry("autoregressive_transformer", train=TRAIN),
    "fat": Entry("fat", train=TRAIN),
    "hybrid": Entry("hybrid", train=TRAIN),
    "nonautoregressive": Entry("nonautoregressive", train=TRAIN, taught=True),
    "hybrid_regressive": Entry("hybrid_regressive", train=TRAIN, taught=True),
}


@final
class PairComparison(ExampleComparison):
    """Sources and their translations."""

    task = "translation"
    unit = "byte"
    metric_names = ("BLEU", "chrF")
    activity = "translates this data"
    scoring_fraction = 0.3

    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None:
        self._config = config
        prepared = prepare_pairs(config, tokenizer, progress=progress)
        assert prepared.test is not None
        self.vocabulary = prepared.tokenizers.target.vocabulary
        self.model_settings = {
            "vocabulary": self.vocabulary, "source_vocabulary": prepared.tokenizers.source.vocabulary
        }  # fmt: skip
        self.train_tokens = len(prepared.train.target)
        self.train, self.valid, self.test = prepared.train.target, prepared.valid.target, prepared.test.target
        self.warnings, self.names = prepared.warnings, prepared.names
        self.language = config.target_language or prepared.languages.target or ""
        metrics(self.language)  # a missing package is reported before the work
        self.references = [pair.target for pair in pairs_as_text(config, "test")]

    @classmethod
    def default_tokenizer(cls, config: DataConfig) -> str:
        """Pieces of words, unless the targets are short or few."""
        pairs = islice(open_pairs(config.train, config.source, config).pairs(), PAIRS_PER_PIECE * MOST_PIECES)
        lengths = [len(pair.target) for pair in pairs]
        pieces = len(lengths) // PAIRS_PER_PIECE // 500 * 500
        if pieces < FEWEST_PIECES or sum(lengths) < SHORT_TARGET * len(lengths):
            return super().default_tokenizer(config)
        return f"bpe:{pieces}"

    @classmethod
    def own_test(cls, config: DataConfig) -> str | None:
        found = open_pairs(config.train, config.source, config).held_out("test")
        return None if found is None else OWN_SPLIT

    @classmethod
    def families(cls) -> list[str]:
        return list(ENTRIES)

    @classmethod
    def known_entries(cls) -> dict[str, Entry]:
        return ENTRIES

    def data_config(self, config: DataConfig) -> DataConfig:
        return config

    @classmethod
    def predict(cls, run: Run, data: TrainingData[Any, Any], deadline: Deadline) -> list[str]:
        """The best translation of each source."""
        translator = require(run, TranslationRun)
        sources = [pair.source for pair in pairs_as_text(run.config.data, "test")]
        found: list[str] = []
        for best, *_ in translator.translate(sources, Search(), batch=BATCH, window=BATCH):
            found.append(best.text)
            if deadline.passed and len(found) % BATCH == 0:
                break
        return found

    def metrics(self, predictions: Sequence[Any]) -> list[TaskMetric]:
        references = self.references[: len(predictions)]
        found = sentence_statistics(predictions, references, target_language=self.language)
        return [
            TaskMetric(key, name, 1, found[key].counts, found[key].score)
            for key, name in zip(("bleu", "chrf"), self.metric_names, strict=True)
        ]

    def described(self) -> dict[str, str]:
        search, one = Search(), self.references[:1]
        found = corpus_scores(one, one, target_language=self.language)
        return {
            "search": f"beam {search.beam}, length penalty {search.length_penalty:g}; parallel models: their default",
            "BLEU": str(found["bleu_signature"]),
            "chrF": str(found["chrf_signature"]),
        }
