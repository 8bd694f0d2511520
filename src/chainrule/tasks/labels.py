"""Labels: one class for each text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch

from chainrule.config import DataConfig, RunConfig, Settings
from chainrule.data.cleaning import sentence
from chainrule.data.corpus import Report
from chainrule.data.examples import PreparedExamples
from chainrule.data.labelled import choose_columns, encode_labelled, encode_text, prepare_labelled, read_labelled
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import normalisation_of
from chainrule.errors import ConfigError
from chainrule.evaluation.labels import LabelScore, draw_confusion, label_score
from chainrule.evaluation.likelihood import surprisals
from chainrule.evaluation.protocol import protocol_for
from chainrule.interface.base import AutoregressiveModel
from chainrule.metrics import score_rows
from chainrule.models.classifier import Classifier
from chainrule.tasks.base import HeldOut, Task, refuse_pairs
from chainrule.tasks.examples import (
    WINDOW,
    ExampleData,
    LinePrediction,
    PredictionRun,
    PredictorT_co,
    in_groups,
    in_windows,
    known_parts,
)
from chainrule.tasks.mixable import MixableRun, named_data
from chainrule.tasks.scoring import ScoreReport
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction
from chainrule.types import Sequences

Probabilities = npt.NDArray[np.float64]


# Runs


class LabelPrediction(NamedTuple):
    """The prediction of a classifier for a text."""

    label: str  # the most probable
    probability: float
    probabilities: dict[str, float]  # of all labels
    cut: bool  # whether the text was longer than the model's context and was cut


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfusionRun(PredictionRun[PredictorT_co]):
    """A run whose score has a confusion matrix."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the target ids."""
        return tuple(self.config.model["labels"])

    def report(self, found: Settings, picture: Path | None) -> ScoreReport:
        assert isinstance(found, LabelScore)
        return label_report(found, picture)


def label_report(found: LabelScore, picture: Path | None) -> ScoreReport:
    """A score with the F1 of each label; the confusion matrix is drawn if there is a file for it."""
    if picture is not None:
        draw_confusion(found, picture)
    values = found.model_dump(mode="json")
    return ScoreReport(values, score_rows(values), tables={"F1": found.f1})


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelRun(ConfusionRun[AutoregressiveModel], MixableRun[AutoregressiveModel]):
    """A model of labels given texts: a classifier, or a mixture of classifiers."""

    model_type = AutoregressiveModel
    does = "labels texts"

    def predict(self, texts: str | Iterable[str], *, window: int = WINDOW) -> Iterator[LabelPrediction | None]:
        """The label of each text, in order; None for an empty one. There may be any number of texts."""
        normalise = normalisation_of(self.config.data)
        lines = [texts] if isinstance(texts, str) else texts
        return in_windows((sentence(text, normalise) for text in lines), self._predict, window=window)

    def _predict(self, texts: Sequence[str]) -> list[LabelPrediction]:
        rows = [encode_text(text, self.tokenizer) for text in texts]
        limit = self.model.source_context
        return [
            LabelPrediction(
                self.labels[int(found.argmax())],
                float(found.max()),
                dict(zip(self.labels, found.tolist(), strict=True)),
                limit is not None and len(row) > limit,
            )
            for row, found in zip(rows, self.probabilities(rows), strict=True)
        ]

    @torch.inference_mode()
    def probabilities(
        self, rows: Sequence[Sequence[int]], *, progress: Callable[[float], None] | None = None
    ) -> Probabilities:
        """(N, V): P(label | text) of encoded texts, each cut to the model's context."""
        cut = [row[: self.model.source_context] for row in rows]

        def compute(group: Sequence[int]) -> list[Probabilities]:
            source = Sequences.pack([cut[row] for row in group], device=self.model.device)
            logits = self.model.start(source).logits[:, 0]
            return list(logits.double().softmax(-1).cpu().numpy())

        found = in_groups([len(row) for row in cut], compute, progress=progress)
        return np.stack(found) if found else np.zeros((0, self.model.vocabulary))

    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        if search is not None:
            raise ConfigError("a label is a single choice and needs no search; remove --search")
        for found in self.predict(lines):
            yield None if found is None else LinePrediction(f"{found.label}\t{found.probability:.4f}", found._asdict())

    def score(self, data: str, *, progress: Fraction | bool | None = True) -> LabelScore:
        pairs = encode_labelled(read_labelled(data, self.config.data), self.tokenizer, self.labels)
        with shown_fraction(progress, "scoring") as report:
            result = self.score_pairs(pairs, progress=report)
        self.keep_score(result, pairs.target, data)
        return result

    def score_pairs(self, pairs: PairedCorpus, *, progress: Callable[[float], None] | None = None) -> LabelScore:
        """The score on encoded texts with their labels."""
        found = self.probabilities([row.tolist() for row in pairs.source.documents()], progress=progress)
        return label_score_of(found, pairs, self.labels)

    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": ", ".join(self.labels)}

    @property
    def autoregressive(self) -> AutoregressiveModel:
        return self.model

    @property
    def vocabulary(self) -> object:
        return self.tokenizer.kind, self.tokenizer.to_json(), self.labels

    def held_out_splits(self, config: DataConfig, progress: Report | None = None) -> dict[str, HeldOut]:
        prepared = prepare_labelled(config, self.config.tokenizer, tokenizer=self.tokenizer, labels=self.labels)
        return {
            split: HeldOut(pairs.target, pairs.source, prepared.names[split])
            for split, pairs in prepared.held_out.items()
        }

    def held_out(self, config: DataConfig, split: str) -> HeldOut:
        examples = read_labelled(named_data(config, split), config)
        pairs = encode_labelled(examples, self.tokenizer, self.labels)
        return HeldOut(pairs.target, pairs.source, config.named(split))

    def create(self, folder: RunFolder, config: RunConfig) -> None:
        folder.create(config, self.tokenizer)

    def score_held_out(self, held_out: HeldOut, progress: Callable[[float], None]) -> LabelScore:
        assert held_out.source is not None
        return self.score_pairs(PairedCorpus(held_out.source, held_out.corpus), progress=progress)


# Data


def accuracy_of(model: AutoregressiveModel, held_out: HeldOut, config: RunConfig) -> Callable[[], Record]:
    """Measures the accuracy of one label per source, at validations."""
    corpus, source, _ = held_out

    def metrics() -> Record:
        protocol = protocol_for(model, corpus, tokens=config.train.validate_tokens)
        return {"valid_accuracy": float(surprisals(model, corpus, protocol, source=source).hits.mean())}

    return metrics


def label_score_of(probabilities: Probabilities, pairs: PairedCorpus, labels: Sequence[str]) -> LabelScore:
    """The score of P(label | source), (N, V), against the labels of encoded examples."""
    right = np.asarray(pairs.target.tokens, np.int64)
    nats = -np.log(np.maximum(probabilities[np.arange(len(right)), right], 1e-300)).mean()
    predicted = probabilities.argmax(1).tolist()
    return label_score(right.tolist(), predicted, labels, texts=len(right), nats=float(nats))


@final
class LabelData(ExampleData[Classifier, LabelRun]):
    """Labels to predict from texts."""

    model_type = Classifier
    run_type = LabelRun

    def __init__(self, prepared: PreparedExamples, config: DataConfig, embedder: Mapping[str, Any]) -> None:
        super().__init__(
            prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings, embedder
        )
        self.labels = prepared.labels
        self.columns = {"source_field": config.source_field, "target_field": config.target_field}

    def data_settings(self, config: DataConfig) -> DataConfig:
        """The columns that were recognised are stored, so that data to be scored is read alike."""
        return super().data_settings(config).model_copy(update=self.columns)

    @property
    def model_settings(self) -> dict[str, Any]:
        return {
            "vocabulary": len(self.labels),
            "source_vocabulary": self.tokenizer.vocabulary,
            "labels": self.labels,
            **self.embedder,
        }

    def batches(self, model: Classifier, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """Texts are cut at the end to the model's context: most of the evidence is at their beginning."""
        self.shorten(model.source_context, reporter, "texts")
        return super().batches(model, config, reporter)

    def validation_metrics(self, model: Classifier, config: RunConfig) -> Callable[[], Record]:
        return accuracy_of(model, self.monitored, config)

    def score_split(self, run: LabelRun, split: str, progress: Callable[[float], None]) -> LabelScore:
        return run.score_pairs(self.splits[split], progress=progress)


class LabelsTask(Task):
    """P(label | text)."""

    run = LabelRun
    missing_data = (
        "no training data was given; name a file of labelled texts with --data: .tsv or .csv with columns for text and "
        "label, or .jsonl"
    )

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> LabelData:
        refuse_pairs(config)
        known, labels, embedder = known_parts(config, stored)
        data, notes = choose_columns(config.data)
        for note in notes:
            reporter.note(note)
        prepared = prepare_labelled(data, config.tokenizer, tokenizer=known, labels=labels)
        return LabelData(prepared, data, embedder)
