"""HTML for notebooks: runs, scores, tokens and other results as tables and pictures.

Everything has the text colour and the background of the page, so that it suits a light and a dark notebook.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from chainrule.metrics import score_rows

FACTS = ("path", "family", "parameters", "vocabulary", "data", "steps", "seconds")
TABLE = "border-collapse:collapse;border:0;margin:0 0 .8em"
CELL = "border:0;padding:.15em .9em .15em 0;background:none;font-variant-numeric:tabular-nums"
HEAD = f"{CELL};font-weight:400;opacity:.68"
CAPTION = "caption-side:top;text-align:left;padding:0 0 .3em;font-weight:600;color:inherit"
MAX_BITS = 12.0  # surprisal with the strongest colour


def run_html(about: Mapping[str, Any], summary: Mapping[str, Any], picture: str = "") -> str:
    """The facts of `Run.info`, the scores on the validation and test data, and the learning curve."""
    tables = [facts_html({name: about[name] for name in FACTS} | dict(summary))]
    scores = {split: about[split] for split in ("validation", "test") if about[split] is not None}
    tables += [facts_html(score_rows(found), f"{split}: {found['data']}") for split, found in scores.items()]
    columns = "".join(f'<div style="margin-right:2.5em">{table}</div>' for table in tables)
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start">{columns}</div>{picture}'


def facts_html(rows: Mapping[str, Any], title: str = "") -> str:
    """Names and values; those without a value are left out."""
    cells = [
        f'<tr style="background:none"><th style="{HEAD};text-align:left">{escape(name.replace("_", " "))}</th>'
        f'<td style="{CELL};text-align:left">{escape(shown(value))}</td></tr>'
        for name, value in rows.items()
        if value is not None
    ]
    caption = f'<caption style="{CAPTION}">{escape(title)}</caption>' if title else ""
    return f'<table style="{TABLE}">{caption}{"".join(cells)}</table>'


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """A table whose first column is text and whose others are right-aligned; cells are HTML."""
    aligned = [f"{CELL};text-align:{'right' if index else 'left'}" for index in range(len(columns))]
    head = "".join(
        f'<th style="{style};font-weight:400;opacity:.68">{escape(name)}</th>'
        for name, style in zip(columns, aligned, strict=True)
    )
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{style}">{cell}</td>' for cell, style in zip(row, aligned, strict=True))
        + "</tr>"
        for row in rows
    )
    caption = f'<caption style="{CAPTION}">{escape(title)}</caption>' if title else ""
    return f'<table style="{TABLE}">{caption}<thead><tr style="background:none">{head}</tr></thead>{body}</table>'


def shown(value: Any) -> str:
    """A value of a table."""
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


class ColouredToken(NamedTuple):
    """A token and how surprising it is."""

    text: str
    nats: float
    tip: str


def tokens_html(tokens: Sequence[ColouredToken]) -> str:
    """A text whose tokens are coloured by their surprisal; each tells its bits and what was expected instead."""
    spans = "".join(
        f'<span title="{escape(token.tip)}" style="{_colour(token.nats / math.log(2))}">{_visible(token.text)}</span>'
        for token in tokens
    )
    scale = "".join(
        f'<span style="{_colour(bits)};padding:0 .45em">{label}</span>'
        for bits, label in ((0.5, "0"), (2.0, "2"), (4.0, "4"), (8.0, "8"), (12.0, "12+"))
    )
    mean = sum(token.nats for token in tokens) / math.log(2) / max(1, len(tokens))
    legend = f'<div style="opacity:.8;font-size:85%;margin-top:.4em">bits {scale} · mean {mean:.2f} bits/token</div>'
    return f'<div style="font-family:monospace;white-space:pre-wrap;line-height:1.7">{spans}</div>{legend}'


def _colour(bits: float) -> str:
    return f"background:rgba(226,98,34,{0.62 * min(bits, MAX_BITS) / MAX_BITS:.2f});border-radius:2px"


def _visible(text: str) -> str:
    """A line end is shown as a sign and a line end."""
    return escape(text).replace("\n", "⏎\n")
