"""What `chainrule score` asks of a run, and what a run answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chainrule.evaluation.token_scores import TokenScore
from chainrule.reports.notebook import ColouredToken, tokens_html


class ScoreRequest(NamedTuple):
    """The options of `chainrule score`; a task refuses those that it has no use for."""

    data: str | None = None
    text: str | None = None
    source: str | None = None
    references: Path | None = None
    stride: int | None = None
    per_token: bool = False
    alternatives: int = 5
    picture: Path | None = None
    search: Mapping[str, Any] = {}  # beam, length penalty, ... of a translation search
    batch: int = 32
    target_language: str | None = None

    def given(self, *names: str) -> list[str]:
        """Those of the named options that the user has set."""
        return [name for name in names if getattr(self, name) not in (None, False)]


class TextToken(NamedTuple):
    """A scored token as text."""

    piece: str
    score: TokenScore
    alternatives: tuple[str, ...]


class TokenScores(list[TokenScore]):
    """The scores of the tokens of a text; a notebook shows the text, coloured by surprisal."""

    def __init__(self, texts: Sequence[TextToken]) -> None:
        super().__init__(token.score for token in texts)
        self.texts = list(texts)

    def _repr_html_(self) -> str:
        return tokens_html([ColouredToken(token.piece, token.score.surprisal, _tip(token)) for token in self.texts])


def _tip(token: TextToken) -> str:
    """What is shown of a token under the pointer: bits, rank, and what was expected instead."""
    others = zip(token.alternatives, token.score.alternatives, strict=True)
    expected = ", ".join(f"{piece!r} {one.probability:.0%}" for piece, one in others)
    return (
        f"{token.piece!r}: {token.score.surprisal / math.log(2):.1f} bits, rank {token.score.rank}; expected {expected}"
    )


class ScoreReport(NamedTuple):
    """The result of a score request: plain values, the rows that a table shows, and what goes beside them."""

    values: dict[str, Any]
    rows: dict[str, Any]
    tables: Mapping[str, Mapping[str, Any]] = {}
    tokens: Sequence[TextToken] = ()
