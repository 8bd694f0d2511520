"""The learning curve of a run, as recorded in metrics.jsonl. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chainrule.metrics import VALIDATION, metric

CURVES = {"bits_per_byte": "bits_per_byte", "bits_per_dim": "bits_per_dim", "nats_per_token": "loss"}
"""What a curve shows, best first: the metric of a validation, and the same of the training batches."""

BARS = "▁▂▃▄▅▆▇█"


class CurvePoint(NamedTuple):
    """A value after so many seconds of training."""

    seconds: float
    value: float


class LearningCurve(NamedTuple):
    """A metric during training, on the validation data and on the training batches; either may be empty."""

    unit: str  # "bits/byte"
    validation: list[CurvePoint]
    training: list[CurvePoint]

    @property
    def summary(self) -> str:
        """The curve in one line: bars, the first and the last value."""
        points = self.validation if len(self.validation) > 1 else self.training
        values = [point.value for point in points]
        data = "validation" if points is self.validation else "training"
        return f"{sparkline(values)}  {values[0]:.3f} → {values[-1]:.3f} {self.unit} ({data})"


def learning_curve(records: Iterable[Mapping[str, Any]]) -> LearningCurve | None:
    """The curve of the records of metrics.jsonl; None if training was not recorded, as for a count model."""
    records = [record for record in records if "seconds" in record]
    for shown, trained in CURVES.items():
        validation = _points(records, VALIDATION + shown)
        training = _points(records, trained)
        if validation or len(training) > 1:
            return LearningCurve(metric(shown).label, validation, training)
    return None


def _points(records: Iterable[Mapping[str, Any]], key: str) -> list[CurvePoint]:
    return [CurvePoint(record["seconds"], record[key]) for record in records if record.get(key) is not None]


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Values as a line of bars, at most `width` of them."""
    count = min(width, len(values))
    chosen = [values[index * (len(values) - 1) // max(1, count - 1)] for index in range(count)]
    low, high = min(chosen), max(chosen)
    steps = [(value - low) / (high - low) if high > low else 0.0 for value in chosen]
    return "".join(BARS[min(len(BARS) - 1, int(step * len(BARS)))] for step in steps)
