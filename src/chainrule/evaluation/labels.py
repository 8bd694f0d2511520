"""How good labels are: accuracy, F1 of each label and their mean, and which label is taken for which.

With c_ij how often label j was predicted where i is right,

    accuracy = Σ_i c_ii / Σ_ij c_ij,    F1_i = 2 c_ii / (Σ_j c_ij + Σ_j c_ji),    macro-F1 = mean of F1_i

over the labels that occur, as right or as predicted. Accuracy counts examples alike, macro-F1 labels alike, the rare as
much as the frequent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chainrule.config import Settings
from chainrule.errors import DataError, MissingExtra

Counts = npt.NDArray[np.int64]


class LabelScore(Settings):
    """The numbers, and what they rest on."""

    accuracy: float = Field(description="share of labels that are right")
    macro_f1: float = Field(description="mean F1 of the labels")
    majority: float = Field(description="accuracy of saying the most frequent label every time")
    nats_per_label: float | None = Field(description="mean of −log P(label | text), each given those before it")
    examples: int = Field(description="labels that were compared")
    texts: int
    whole: float | None = Field(None, description="share of sentences whose tags are all right")
    f1: dict[str, float] = Field(description="of each label")
    confusion: tuple[tuple[int, ...], ...] = Field(description="how often the label of a row was taken for a column's")


def confusion(right: Sequence[int], found: Sequence[int], labels: int) -> Counts:
    """(labels, labels): how often each was predicted (column) where each is right (row)."""
    pairs = np.asarray(right, np.int64) * labels + np.asarray(found, np.int64)
    return np.bincount(pairs, minlength=labels * labels).reshape(labels, labels)


def label_score(
    right: Sequence[int],
    found: Sequence[int],
    labels: Sequence[str],
    *,
    texts: int,
    nats: float | None = None,
    whole: float | None = None,
) -> LabelScore:
    """The score of predicted ids against the right ones."""
    if len(right) != len(found):
        raise DataError(f"{len(found):,} labels came with {len(right):,} right ones; give one to each")
    if not right:
        raise DataError("there is nothing to score: no labels were given; give at least one")
    counts = confusion(right, found, len(labels))
    rows, columns, hits = counts.sum(1), counts.sum(0), counts.diagonal()
    f1 = 2 * hits / np.maximum(1, rows + columns)
    occurs = rows + columns > 0
    return LabelScore(
        accuracy=float(hits.sum() / counts.sum()),
        macro_f1=float(f1[occurs].mean()),
        majority=float(rows.max() / counts.sum()),
        nats_per_label=nats,
        examples=len(right),
        texts=texts,
        whole=whole,
        f1={label: float(value) for label, value in zip(labels, f1, strict=True)},
        confusion=tuple(tuple(row) for row in counts.tolist()),
    )


def draw_confusion(score: LabelScore, path: Path) -> None:
    """A picture of the confusion matrix: rows are the right labels, shaded by the share of each that went where."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("a picture of the confusion matrix", "plots") from None
    labels, counts = list(score.f1), np.array(score.confusion)
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    size = 2.2 + 0.45 * len(labels)
    figure = Figure(figsize=(size + 0.6, size), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    axes.set_title(f"accuracy {score.accuracy:.3f}, macro-F1 {score.macro_f1:.3f}", fontsize=10)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=shade, fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"the picture {str(path)!r} cannot be written: {error}; choose a .png in a folder") from None
