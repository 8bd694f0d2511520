"""Runs that say something about a text: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar

from chainrule.config import RunConfig, Settings
from chainrule.data.batching import by_length
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.runs.base import Run
from chainrule.tokenizers import Tokenizer
from chainrule.training.checkpoint import RunFolder
from chainrule.training.loop import Outcome

HELD = 512  # texts that are held at once, to read those of similar length together
ROWS_AT_ONCE, TOKENS_AT_ONCE = 256, 8192  # that a model reads, padding included

Given = TypeVar("Given")
Found = TypeVar("Found")


class Said(NamedTuple):
    """What is said about a line."""

    line: str  # for people
    record: dict[str, Any]  # for machines


@dataclass(frozen=True, kw_only=True)
class PredictingRun(Run):
    """A model of something short given a text, with the vocabulary of the text."""

    does = "says something about texts"
    use = "chainrule predict {run} < my.txt"

    model: AutoregressiveModel
    tokenizer: Tokenizer

    @classmethod
    def of(cls, folder: RunFolder, config: RunConfig, model: Model, outcome: Outcome | None) -> Self:
        assert isinstance(model, AutoregressiveModel)
        return cls(folder=folder, config=config, model=model, outcome=outcome, tokenizer=folder.tokenizer())

    @abstractmethod
    def said(self, lines: Iterable[str], *, search: str | None = None, beam: int = 5) -> Iterator[Said | None]:
        """What is said about each line, in their order; None about an empty one. Any number of lines may come."""

    @abstractmethod
    def score(self, data: str, *, progress: Callable[[float], None] | None = None) -> Settings:
        """Compare what is said with what is right. The result is also kept in scores.jsonl."""

    def about(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.kind, "tokenizer_note": self.tokenizer.note}


def held(
    texts: Iterable[Given], predict: Callable[[Sequence[Given]], Sequence[Found]], *, window: int = HELD
) -> Iterator[Found | None]:
    """Some texts at a time, in their order; None for those that hold nothing."""
    waiting = iter(texts)
    while now := list(islice(waiting, window)):
        found = iter(predict([text for text in now if text]))
        for text in now:
            yield next(found) if text else None


def in_groups(
    lengths: Sequence[int],
    compute: Callable[[Sequence[int]], Sequence[Found]],
    *,
    progress: Callable[[float], None] | None = None,
) -> list[Found]:
    """What `compute` makes of all texts, which it is given as indices, those of similar length at a time."""
    found: dict[int, Found] = {}
    for group in by_length(lengths, ROWS_AT_ONCE, TOKENS_AT_ONCE):
        found |= zip(group, compute(group), strict=True)
        if progress is not None:
            progress(len(found) / len(lengths))
    return [found[row] for row in range(len(lengths))]
