"""Comparison of classifiers: one encoder each, the same labelled texts, accuracy and macro-F1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from chainrule.config import DataConfig
from chainrule.data.corpus import Report
from chainrule.data.labelled import choose_columns, prepare_labelled
from chainrule.deadline import Deadline
from chainrule.errors import ConfigError
from chainrule.models.classifier import Classifier
from chainrule.tasks.base import Run, require
from chainrule.tasks.comparing import Entry, ExampleComparison, Statistics, TaskMetric
from chainrule.tasks.labels import LabelRun
from chainrule.tasks.training_data import TrainingData
from chainrule.training.checkpoint import RunFolder

BATCH = 512  # texts between two looks at the clock

ENTRIES = {
    "words": Entry("classifier", summary="Classifier over word vectors that it learns itself."),
    "attentive_conv": Entry(
        "classifier",
        {"encoder": "attentive_conv"},
        summary="Classifier over attentive convolution, which reads each token with those before it.",
    ),
    "attentive_conv_unmasked": Entry(
        "classifier",
        {"encoder": "attentive_conv", "encoder_mask": "none"},
        summary="Classifier over attentive convolution without a mask, which reads each token with the whole text.",
    ),
}


@final
class LabelComparison(ExampleComparison):
    """Texts with one label each."""

    task = "labels"
    unit = "label"
    metric_names = ("accuracy", "macro-F1")
    activity = "labels these texts"
    scoring_fraction = 0.15

    def __init__(self, config: DataConfig, tokenizer: str, progress: Report) -> None:
        self._config, notes = choose_columns(config)
        prepared = prepare_labelled(self._config, tokenizer)
        self.labels = prepared.labels
        self.vocabulary = len(prepared.labels)
        self.model_settings = {
            "vocabulary": self.vocabulary, "source_vocabulary": prepared.tokenizer.vocabulary, "labels": self.labels
        }  # fmt: skip
        self.train_tokens = len(prepared.train.source)
        self.train, self.valid = prepared.train.target, prepared.held_out["validation"].target
        self.test = prepared.held_out["test"].target
        self.names = prepared.names
        self.warnings = (*notes, *prepared.warnings)

    @classmethod
    def default_tokenizer(cls, config: DataConfig) -> str:
        return Classifier.tokenizer

    @classmethod
    def own_test(cls, config: DataConfig) -> str | None:
        return None

    @classmethod
    def families(cls) -> list[str]:
        return list(ENTRIES)

    @classmethod
    def entries(cls, encoders: Sequence[str] = ()) -> dict[str, Entry]:
        """The encoders that a classifier learns itself, then those that were trained before."""
        found = dict(ENTRIES)
        for path in encoders:
            name = Path(path).name
            if name in found:
                raise ConfigError(f"--encoder {path!r} has the name of another encoder, {name}; rename its folder")
            found[name] = _encoder(path)
        return found

    def data_config(self, config: DataConfig) -> DataConfig:
        return self._config

    @classmethod
    def predict(cls, run: Run, data: TrainingData[Any, Any], deadline: Deadline) -> list[int]:
        """The most probable label of each text."""
        classifier = require(run, LabelRun)
        source = data.held_out["test"].source
        assert source is not None
        rows = [row.tolist() for row in source.documents()]
        found: list[int] = []
        while len(found) < len(rows) and not (found and deadline.passed):
            found += classifier.probabilities(rows[len(found) : len(found) + BATCH]).argmax(1).tolist()
        return found

    def metrics(self, predictions: Sequence[Any]) -> list[TaskMetric]:
        """A statistic per pair of correct and predicted label: their sum is the confusion matrix."""
        count = len(self.labels)
        correct = np.asarray(self.test.tokens[: len(predictions)], np.int64)
        hits = (correct == np.asarray(predictions)).astype(np.float64)[:, None]
        parts = np.zeros((len(predictions), 3, count))  # of each label: correct, predicted, both
        rows = np.arange(len(predictions))
        parts[rows, 0, correct] = parts[rows, 1, predictions] = 1
        parts[rows, 2] = parts[:, 0] * parts[:, 1]
        flat = parts.reshape(len(predictions), -1)
        examples = np.ones((len(predictions), 1))
        return [
            TaskMetric("accuracy", "accuracy", 3, np.hstack([hits, examples]), lambda sums: sums[:, 0] / sums[:, 1]),
            TaskMetric("macro_f1", "macro-F1", 3, flat, _macro_f1),
        ]

    def described(self) -> dict[str, str]:
        return {
            "labels": ", ".join(self.labels),
            "macro-F1": "mean of the F1 of the labels that occur, as correct or as predicted",
        }


def _macro_f1(sums: Statistics) -> Statistics:
    """(R,) from the counts of each label: correct, predicted, both."""
    correct, predicted, both = np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)
    f1 = 2 * both / np.maximum(1, correct + predicted)
    return np.asarray(f1.sum(1) / np.maximum(1, (correct + predicted > 0).sum(1)))


def _encoder(path: str) -> Entry:
    """A run that embeds tokens, or the folder of a BERT or GPT-2."""
    folder = Path(path)
    if (folder / "config.toml").is_file():
        stored = RunFolder(folder).config()
        return Entry(
            "classifier", {"encoder_run": str(folder)}, summary=f"Classifier over the vectors of {stored.family}."
        )
    if (folder / "tokenizer.json").is_file():
        return Entry("classifier", {"features": str(folder)}, summary=f"Classifier over the features of {folder.name}.")
    raise ConfigError(
        f"--encoder {path!r} is neither a run nor the folder of a pretrained model; give a run of word2vec, elmo or "
        "bert, or a folder with config.json and tokenizer.json"
    )
