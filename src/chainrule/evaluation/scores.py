"""What all scores are: metrics as plain values, which a notebook shows as a table."""

from __future__ import annotations

from chainrule.config import Settings
from chainrule.metrics import score_rows
from chainrule.reports.notebook import facts_html


class MetricValues(Settings):
    """Metrics of a model on some data."""

    def _repr_html_(self) -> str:
        return facts_html(score_rows(self.model_dump(mode="json")))
