"""Which part of the data is held out for validation and test: its end, its start, or blocks spread evenly over it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Literal, NamedTuple, TypeVar

from chainrule.config import DataConfig
from chainrule.errors import DataError

ValidFrom = Literal["end", "start", "spread"]
Item = TypeVar("Item")

TRAINING = "training"
MOST_BLOCKS = 1000  # of each spread split


class Span(NamedTuple):
    """A range of a source: characters of a stream, or documents, examples or images."""

    start: int
    end: int


class Part(NamedTuple):
    """Ranges of a source, in order and without overlap."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, start: int, end: int) -> Part:
        """A single range."""
        return cls((Span(start, end),))

    @property
    def size(self) -> int:
        return sum(span.end - span.start for span in self.spans)

    def within(self, start: int, end: int) -> Part:
        """What this part has of a range, relative to its start."""
        clipped = (Span(max(start, span.start) - start, min(end, span.end) - start) for span in self.spans)
        return Part(tuple(span for span in clipped if span.start < span.end))

    def choose(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items of this part, and stop reading after the last."""
        remaining, position = iter(items), 0
        for span in self.spans:
            yield from itertools.islice(remaining, span.start - position, span.end - position)
            position = span.end


def fractions_of(config: DataConfig, given: Iterable[str] = ()) -> dict[str, float]:
    """Return the fraction of the training data for each held-out split that has no data of its own."""
    fractions: dict[str, float] = {}
    if "test" not in given and config.test_fraction is not None:
        fractions["test"] = config.test_fraction
    if "validation" not in given:
        fractions["validation"] = config.valid_fraction
    return fractions


def hold_out(
    size: int,
    fractions: Mapping[str, float],
    valid_from: ValidFrom,
    *,
    what: str,
    spec: str,
    block: int = 1,
    most: int = MOST_BLOCKS,
) -> dict[str, Part]:
    """Return the parts of `size` items by split, training data included.

    Each fraction is relative to what the previous ones have left. Splits are taken from the end, one before the other;
    `start` takes validation data from the start instead. `spread` divides the data into at most `most` equal sections
    and takes the end of each, in blocks of at least `block` items.
    """
    counts: dict[str, int] = {}
    left = size
    for name, fraction in fractions.items():
        kept = int(left * (1 - Fraction(str(fraction))))  # exact: in floating point 1 - 0.9 < 0.1
        if not 0 < kept < left:
            counted = what if left != 1 else what.removesuffix("s")
            raise DataError(
                f"{spec!r} has {left} {counted}, too few to split off {fraction:g} for {name}; give {name} data"
            )
        counts[name], left = left - kept, kept
    sections = 1
    if valid_from == "spread" and counts:
        sections = max(1, min(most, min(counts.values()) // block))
    spans: dict[str, list[Span]] = {name: [] for name in (TRAINING, *counts)}
    for number in range(sections):
        begin, end = (size * edge // sections for edge in (number, number + 1))
        for name, count in counts.items():
            taken = count * (number + 1) // sections - count * number // sections
            if name == "validation" and valid_from == "start":
                spans[name].append(Span(begin, begin + taken))
                begin += taken
            else:
                spans[name].append(Span(end - taken, end))
                end -= taken
        spans[TRAINING].append(Span(begin, end))
    return {name: Part(tuple(found)) for name, found in spans.items()}
