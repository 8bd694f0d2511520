"""Metrics of predicted labels: accuracy, F1 of each label, macro-F1 and the confusion matrix.

With c_ij the number of times label j was predicted where i is correct,

    accuracy = Σ_i c_ii / Σ_ij c_ij,    F1_i = 2 c_ii / (Σ_j c_ij + Σ_j c_ji),    macro-F1 = mean of F1_i

over the labels that occur, as correct or as predicted. Accuracy weights all examples equally, macro-F1 all labels,
rare ones as much as frequent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chainrule.errors import DataError, MissingExtra
from chainrule.evaluation.scores import MetricValues

Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class LabelScore(MetricValues):
    """Metrics, and how they were measured."""

    accuracy: float = Field(description="fraction of correct labels")
    macro_f1: float = Field(description="mean F1 of the labels")
    majority: float = Field(description="accuracy of always predicting the most frequent label")
    nats_per_label: float | None = Field(description="mean of −log P(label | text, previous labels)")
    examples: int = Field(description="number of labels")
    texts: int | None = None
    images: int | None = None
    whole: float | None = Field(None, description="fraction of sentences whose tags are all correct")
    entity_precision: float | None = Field(None, description="of BIO or IOBES entities, by type and both ends")
    entity_recall: float | None = None
    entity_f1: float | None = None
    entities: int | None = Field(None, description="number of entities in the data")
    f1: dict[str, float] = Field(description="of each label")
    confusion: tuple[tuple[int, ...], ...] = Field(description="counts; rows are correct, columns predicted labels")


class LabelSetScore(MetricValues):
    """Metrics of predicted sets of labels, and how they were measured."""

    accuracy: float = Field(description="fraction of examples whose labels are all correct")
    label_accuracy: float = Field(description="fraction of correct decisions over all examples and labels")
    micro_f1: float = Field(description="F1 over all examples and labels")
    macro_f1: float = Field(description="mean F1 of the labels")
    majority: float = Field(description="accuracy of always predicting the most frequent set of labels")
    nats_per_label: float = Field(description="binary cross-entropy: mean of −log P over all examples and labels")
    pairs: int
    f1: dict[str, float] = Field(description="of each label")


def label_set_score(right: Flags, probabilities: npt.NDArray[np.float64], labels: Sequence[str]) -> LabelSetScore:
    """Compare predicted sets of labels with the correct ones; both are (examples, labels)."""
    if not len(right):
        raise DataError("no labels to score; give at least one")
    found = probabilities > 0.5
    hits, counts = (found & right).sum(0), found.sum(0) + right.sum(0)
    f1 = 2 * hits / np.maximum(1, counts)
    likelihood = np.where(right, probabilities, 1 - probabilities)
    return LabelSetScore(
        accuracy=float((found == right).all(1).mean()),
        label_accuracy=float((found == right).mean()),
        micro_f1=float(2 * hits.sum() / max(1, counts.sum())),
        macro_f1=float(f1[counts > 0].mean()) if counts.any() else 0.0,
        majority=float(np.unique(right, axis=0, return_counts=True)[1].max() / len(right)),
        nats_per_label=float(-np.log(np.maximum(likelihood, 1e-300)).mean()),
        pairs=len(right),
        f1={label: float(value) for label, value in zip(labels, f1, strict=True)},
    )


def confusion(correct: Sequence[int], predicted: Sequence[int], labels: int) -> Counts:
    """Counts (labels, labels) of predicted labels (columns) by correct labels (rows)."""
    pairs = np.asarray(correct, np.int64) * labels + np.asarray(predicted, np.int64)
    return np.bincount(pairs, minlength=labels * labels).reshape(labels, labels)


def label_score(
    correct: Sequence[int],
    predicted: Sequence[int],
    labels: Sequence[str],
    *,
    texts: int,
    nats: float | None = None,
    whole: float | None = None,
) -> LabelScore:
    """Compare predicted label ids with the correct ones."""
    if len(correct) != len(predicted):
        raise DataError(f"got {len(predicted):,} predicted labels for {len(correct):,} correct ones; give one for each")
    if not correct:
        raise DataError("no labels to score; give at least one")
    counts = confusion(correct, predicted, len(labels))
    rows, columns, hits = counts.sum(1), counts.sum(0), counts.diagonal()
    f1 = 2 * hits / np.maximum(1, rows + columns)
    occurs = rows + columns > 0
    return LabelScore(
        accuracy=float(hits.sum() / counts.sum()),
        macro_f1=float(f1[occurs].mean()),
        majority=float(rows.max() / counts.sum()),
        nats_per_label=nats,
        examples=len(correct),
        texts=texts,
        whole=whole,
        f1={label: float(value) for label, value in zip(labels, f1, strict=True)},
        confusion=tuple(tuple(row) for row in counts.tolist()),
    )


def draw_confusion(score: LabelScore, path: Path) -> None:
    """Plot the confusion matrix: rows are the correct labels, shaded by the fraction of each row."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting the confusion matrix", "plots") from None
    labels, counts = list(score.f1), np.array(score.confusion)
    fractions = counts / np.maximum(1, counts.sum(1, keepdims=True))
    size = 2.2 + 0.45 * len(labels)
    figure = Figure(figsize=(size + 0.6, size), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("correct")
    axes.set_title(f"accuracy {score.accuracy:.3f}, macro-F1 {score.macro_f1:.3f}", fontsize=10)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            shade = "white" if fractions[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=shade, fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot write the plot {str(path)!r}: {error}; use a .png file in an existing folder"
        ) from None
