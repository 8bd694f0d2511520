"""HTML for notebooks: a run as tables."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from chainrule.metrics import score_rows

FACTS = ("path", "family", "parameters", "vocabulary", "data", "steps", "seconds")


def run_html(about: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The facts of `Run.info` and the scores on the validation and test data."""
    tables = [_table("", {name: about[name] for name in FACTS} | dict(summary))]
    scores = {split: about[split] for split in ("validation", "test") if about[split] is not None}
    tables += [_table(f"{split}: {found['data']}", score_rows(found)) for split, found in scores.items()]
    return "".join(tables)


def _table(title: str, rows: Mapping[str, Any]) -> str:
    cells = [
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_shown(value))}</td></tr>"
        for name, value in rows.items()
        if value is not None
    ]
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}{''.join(cells)}</table>"


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
