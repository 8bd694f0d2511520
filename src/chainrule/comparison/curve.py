"""The same comparison at several budgets: which family leads depends on how long they may train."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from chainrule.comparison.compare import DEFAULT_MINUTES, Watcher, compare
from chainrule.comparison.report import render_curve
from chainrule.comparison.results import BudgetCurve, Results
from chainrule.files import write_whole

SHARES = (0.125, 0.25, 0.5, 1.0)  # of the largest budget


def budget_curve(
    data: str, *, out: str | Path, minutes: float | None = None, watcher: Watcher | None = None, **settings: Any
) -> BudgetCurve:
    """Compare at each budget, in a folder of its own, and draw who leads."""
    budgets = [(minutes or DEFAULT_MINUTES) * share for share in SHARES]
    found = [
        compare(data, out=Path(out) / f"minutes-{budget:g}", minutes=budget, watcher=watcher, **settings)
        for budget in budgets
    ]
    curve = BudgetCurve(
        data=data,
        command=settings.get("command", ""),
        unit=found[-1].unit,
        minutes=budgets,
        bits_per_byte={name: [_bits(one, name) for one in found] for name in _names(found)},
        leaders=[one.best for one in found],
        recommendation=_in_words(budgets, [_leader(one) for one in found]),
    )
    write_whole(Path(out) / "curve.json", curve.model_dump_json(indent=2))
    write_whole(Path(out) / "report.html", render_curve(curve))
    return curve


def _names(found: Sequence[Results]) -> list[str]:
    return list(dict.fromkeys(row.name for one in reversed(found) for row in one.rows))


def _bits(results: Results, name: str) -> float | None:
    return next((row.bits_per_byte for row in results.rows if row.name == name), None)


def _leader(results: Results) -> str:
    """The best family; a mixture of all leads almost anywhere."""
    return next(row.name for row in results.rows if row.kind == "family")


def _in_words(budgets: Sequence[float], leaders: Sequence[str]) -> str:
    spans = []
    for name, group in groupby(zip(budgets, leaders, strict=True), key=lambda pair: pair[1]):
        minutes = [budget for budget, _ in group]
        spans.append(f"{name} at {minutes[0]:g}" + (f" to {minutes[-1]:g}" if len(minutes) > 1 else ""))
    return f"Of the single families, in a comparison of so many minutes: {', '.join(spans)}."
