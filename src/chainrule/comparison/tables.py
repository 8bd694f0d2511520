"""The report's tables: all models in one, and what each pays for which tokens, relative to the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from chainrule.comparison.results import Bucket, Row
from chainrule.reports.scales import Scale, around

WORSE = (0.01, 0.03, 0.06, 0.12, 0.25)
"""Shares of the best figure at which the colour of a cell changes."""
TELLING = 1000  # tokens in a column before its leader is worth a word


class Standing(NamedTuple):
    """A row of the main table, with its interval in percent of the width of the column."""

    row: Row
    low: float
    at: float
    high: float
    behind: float  # bits per byte more than the best


def leaderboard(rows: Sequence[Row]) -> list[Standing]:
    """The rows as they come, their intervals on one scale."""
    if not rows:
        return []
    low, high = around([edge for row in rows for edge in row.interval], margin=0.04)
    scale = Scale(low=low, high=high, start=0, end=100)
    return [
        Standing(
            row,
            scale(row.interval[0]),
            scale(row.bits_per_byte),
            scale(row.interval[1]),
            row.bits_per_byte - rows[0].bits_per_byte,
        )
        for row in rows
    ]


class Cell(NamedTuple):
    """What one model paid for the tokens of one bucket."""

    bits: float
    more: float  # than the best model paid
    level: int  # 0: the best; then from hardly to much worse


class HeatTable(NamedTuple):
    """Buckets as columns, models as rows."""

    key: str
    title: str
    finding: str
    columns: list[Bucket]
    shares: list[float]  # of all tokens, per column
    rows: list[tuple[str, list[Cell]]]


def heat_table(key: str, title: str, buckets: Sequence[Bucket], rows: Sequence[Row]) -> HeatTable:
    """Every model against the best one of each column."""
    names = [row.name for row in rows if all(row.name in bucket.bits_per_token for bucket in buckets)]
    total = sum(bucket.tokens for bucket in buckets)
    best = [min(bucket.bits_per_token.values()) for bucket in buckets]
    return HeatTable(
        key,
        title,
        _finding(buckets, [row.name for row in rows if row.kind == "family" and row.name in names]),
        list(buckets),
        [bucket.tokens / total for bucket in buckets],
        [
            (name, [_cell(bucket.bits_per_token[name], low) for bucket, low in zip(buckets, best, strict=True)])
            for name in names
        ],
    )


def _cell(bits: float, best: float) -> Cell:
    more = bits - best
    level = 0 if more <= 0 else 1 + sum(more >= edge * best for edge in WORSE)
    return Cell(bits, more, level)


def _finding(buckets: Sequence[Bucket], families: Sequence[str]) -> str:
    """Which family leads where, in a sentence; mixtures, which lead nearly everywhere, are left aside."""
    buckets = [bucket for bucket in buckets if bucket.tokens >= TELLING]
    if len(families) < 2 or not buckets:
        return ""
    leaders = [(min(families, key=bucket.bits_per_token.__getitem__), bucket.label) for bucket in buckets]
    if len({name for name, _ in leaders}) == 1:
        return f"Among single families, {leaders[0][0]} leads throughout."
    parts = []
    for name, group in itertools.groupby(leaders, key=lambda leader: leader[0]):
        labels = [label for _, label in group]
        parts.append(f"{name} at {labels[0]}" + (f" to {labels[-1]}" if len(labels) > 1 else ""))
    return "Among single families, the leader is " + ", ".join(parts[:-1]) + f" and {parts[-1]}."
