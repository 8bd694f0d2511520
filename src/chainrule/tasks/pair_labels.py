"""Labels of pairs of texts: one or several for each pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch

from chainrule.config import RunConfig, Settings
from chainrule.data.cleaning import sentence
from chainrule.data.corpus import Corpus
from chainrule.data.examples import PreparedExamples
from chainrule.data.labelled_pairs import (
    FIRST_NAMES,
    SECOND_NAMES,
    encode_data,
    encode_pair,
    prepare_labelled_pairs,
)
from chainrule.data.parallel import PairedCorpus
from chainrule.data.source import normalisation_of
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.labels import LabelScore, LabelSetScore, label_score, label_set_score
from chainrule.metrics import score_rows
from chainrule.models.pair_classifier import PairClassifier
from chainrule.tasks.base import Task, refuse_pairs
from chainrule.tasks.examples import (
    ExampleData,
    LinePrediction,
    PredictionRun,
    in_groups,
    in_windows,
    known_parts,
)
from chainrule.tasks.labels import Probabilities, label_report
from chainrule.tasks.scoring import ScoreReport
from chainrule.tasks.training_data import TrainingBatches
from chainrule.training.checkpoint import RunFolder
from chainrule.training.progress import Fraction, Record, Reporter, shown_fraction
from chainrule.types import Batch, Sequences

# Runs


class PairPrediction(NamedTuple):
    """The prediction for a pair of texts."""

    labels: tuple[str, ...]  # the most probable one, or all that are more probable than not
    probabilities: dict[str, float]  # of all labels


@dataclass(frozen=True, kw_only=True, repr=False)
class PairLabelRun(PredictionRun[PairClassifier]):
    """A model of labels given pairs of texts."""

    model_type = PairClassifier
    does = "labels pairs of texts"
    use = "chainrule predict {run} < pairs.tsv"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels."""
        return self.model.config.labels

    def predict(self, pairs: Iterable[tuple[str, str]]) -> Iterator[PairPrediction | None]:
        """The labels of each pair, in order; None for an empty one."""
        normalise = normalisation_of(self.config.data)
        texts = ((sentence(first, normalise), sentence(second, normalise)) for first, second in pairs)
        return in_windows((pair if any(pair) else () for pair in texts), self._predict)

    def _predict(self, pairs: Sequence[tuple[str, ...]]) -> list[PairPrediction]:
        rows = [encode_pair(first, second, self.tokenizer) for first, second in pairs]
        found = []
        for probabilities in label_probabilities(self.model, rows):
            chosen = probabilities > 0.5 if self.model.config.multi_label else probabilities == probabilities.max()
            labels = tuple(label for label, taken in zip(self.labels, chosen, strict=True) if taken)
            found.append(PairPrediction(labels, dict(zip(self.labels, probabilities.tolist(), strict=True))))
        return found

    def predict_lines(
        self, lines: Iterable[str], *, search: str | None = None, beam: int = 5
    ) -> Iterator[LinePrediction | None]:
        if search is not None:
            raise ConfigError("a label is a single choice and needs no search; remove --search")
        for found in self.predict(_pair_of(line, number) for number, line in enumerate(lines, start=1)):
            if found is None:
                yield None
                continue
            shown = [f"{label}\t{found.probabilities[label]:.4f}" for label in found.labels]
            yield LinePrediction("\t".join(shown) or "–", found._asdict())

    def score(self, data: str, *, progress: Fraction | bool | None = True) -> LabelScore | LabelSetScore:
        pairs = encode_data(data, self.config.data, self.tokenizer, self.labels)
        with shown_fraction(progress, "scoring") as report:
            result = self.score_pairs(pairs, progress=report)
        self.keep_score(result, pairs.target, data)
        return result

    def score_pairs(
        self, pairs: PairedCorpus, *, progress: Callable[[float], None] | None = None
    ) -> LabelScore | LabelSetScore:
        """The score on encoded pairs with their labels."""
        rows = [row.tolist() for row in pairs.source.documents()]
        self.model.precompute(row[: self.model.source_context] for row in rows)
        found = label_probabilities(self.model, rows, progress=progress)
        right = _flags(pairs.target, len(self.labels))
        if self.model.config.multi_label:
            return label_set_score(right, found, self.labels)
        likelihood = np.where(right, found, 1 - found)
        nats = float(-np.log(np.maximum(likelihood, 1e-300)).mean())
        correct, predicted = right.argmax(1).tolist(), found.argmax(1).tolist()
        return label_score(correct, predicted, self.labels, texts=len(rows), nats=nats)

    def report(self, found: Settings, picture: Path | None) -> ScoreReport:
        if isinstance(found, LabelScore):
            return label_report(found, picture)
        assert isinstance(found, LabelSetScore)
        if picture is not None:
            raise ConfigError("sets of labels have no confusion matrix; remove --picture")
        values = found.model_dump(mode="json")
        return ScoreReport(values, score_rows({**values, "f1": None}), tables={"F1": found.f1})

    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": ", ".join(self.labels)}


@torch.inference_mode()
def label_probabilities(
    model: PairClassifier, rows: Sequence[Sequence[int]], *, progress: Callable[[float], None] | None = None
) -> Probabilities:
    """(N, K): P(label | pair) of encoded pairs, each cut to the model's context."""
    cut = [row[: model.source_context] for row in rows]

    def compute(group: Sequence[int]) -> list[Probabilities]:
        source = Sequences.pack([cut[row] for row in group], device=model.device)
        target = Sequences.full(torch.zeros(len(group), model.context, dtype=torch.int64, device=model.device))
        logits = model.logits(Batch(target, source))
        return list(logits.double().softmax(-1)[..., 1].cpu().numpy())

    found = in_groups([len(row) for row in cut], compute, progress=progress)
    return np.stack(found) if found else np.zeros((0, model.context))


def _flags(target: Corpus, labels: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(target.tokens).reshape(-1, labels).astype(np.bool_)


def _pair_of(line: str, number: int) -> tuple[str, str]:
    """The two texts of an input line: JSON, or two columns separated by a tab."""
    if not line.strip():
        return "", ""
    if line.lstrip().startswith("{"):
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"line {number} is not valid JSON: {error.msg}; correct it") from None
        sides = (FIRST_NAMES, SECOND_NAMES)
        given = [next((record[name] for name in names if name in record), None) for names in sides]
        if not all(isinstance(text, str) for text in given):
            raise DataError(f'line {number} has no pair of texts; use {{"question": …, "passage": …}}')
        return str(given[0]), str(given[1])
    first, tab, second = line.partition("\t")
    if not tab:
        raise DataError(f"line {number} has no tab; give two texts separated by a tab, or a line of JSON")
    return first, second


# Data


@final
class PairLabelData(ExampleData[PairClassifier, PairLabelRun]):
    """Labels to predict from pairs of texts."""

    model_type = PairClassifier
    run_type = PairLabelRun

    def __init__(self, prepared: PreparedExamples, embedder: Mapping[str, Any]) -> None:
        super().__init__(
            prepared.tokenizer, prepared.train, prepared.held_out, prepared.names, prepared.warnings, embedder
        )
        self.labels = prepared.labels

    @property
    def model_settings(self) -> dict[str, Any]:
        splits = (self.pairs, *self.splits.values())
        return {
            "vocabulary": 2,
            "source_vocabulary": self.tokenizer.vocabulary,
            "labels": self.labels,
            "multi_label": any((_flags(pairs.target, len(self.labels)).sum(1) != 1).any() for pairs in splits),
            "separator": self.tokenizer.eos,
            **self.embedder,
        }

    def batches(self, model: PairClassifier, config: RunConfig, reporter: Reporter) -> TrainingBatches:
        """Pairs are cut at the end, in the second text, to the model's context."""
        self.shorten(model.source_context, reporter, "pairs")
        return super().batches(model, config, reporter)

    def validation_metrics(self, model: PairClassifier, config: RunConfig) -> Callable[[], Record]:
        """The fraction of pairs whose label or labels are correct."""
        count = max(1, config.train.validate_tokens // len(self.labels))
        pairs = self.splits["validation"]
        rows = [row.tolist() for row in pairs.source.documents()][:count]
        right = _flags(pairs.target, len(self.labels))[:count]

        def metrics() -> Record:
            found = label_probabilities(model, rows)
            if model.config.multi_label:
                return {"valid_accuracy": float(((found > 0.5) == right).all(1).mean())}
            return {"valid_accuracy": float((found.argmax(1) == right.argmax(1)).mean())}

        return metrics

    def score_split(
        self, run: PairLabelRun, split: str, progress: Callable[[float], None]
    ) -> LabelScore | LabelSetScore:
        return run.score_pairs(self.splits[split], progress=progress)


class PairLabelsTask(Task):
    """P(labels | two texts)."""

    run = PairLabelRun
    missing_data = (
        "no training data was given; name pairs of texts with their labels with --data: .tsv or .csv with three "
        "columns, .jsonl, or questions with their contexts, as SQuAD's JSON"
    )

    @classmethod
    def open(cls, config: RunConfig, reporter: Reporter, stored: RunFolder | None) -> PairLabelData:
        refuse_pairs(config)
        known, labels, embedder = known_parts(config, stored)
        prepared = prepare_labelled_pairs(
            config.data, config.tokenizer, tokenizer=known, labels=labels, seed=config.seed
        )
        return PairLabelData(prepared, embedder)
