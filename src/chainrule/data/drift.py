"""Whether the end of the data resembles the rest: if not, validation data from the end misleads.

The data is divided into tenths, and a sample of the last, or the first, is compared with samples of the others: the
order of lines, the length of documents, and the frequencies of common words. Prose, code and poetry have a total
variation distance of 0.04 to 0.24 between the word frequencies of a tenth and the rest, a folder of unlike logs 0.5.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.source import TextSource, count
from chainrule.data.splits import TRAINING, Part, Span

TENTHS = 10
SAMPLE = 100_000  # characters of each tenth that are compared
FEWEST_LINES = 200  # of which order and lengths are compared
SORTED = 0.95  # fraction of neighbouring lines in order from which on a text is sorted
FEWEST_WORDS, COMMON_WORDS = 1000, 200  # of a tenth; whose frequencies are compared
DISTANCE = 0.3  # total variation distance of their frequencies from which on a tenth is unlike the others
LENGTH_RATIO = 1.5  # of the mean length of documents
LONGEST_MEAN_WORD = 10  # characters; texts with longer ones have no white space between words
WORD = re.compile(r"\w+|[^\w\s]")


class Drift(NamedTuple):
    """How the first or the last tenth differs from the rest."""

    in_order: float  # fraction of neighbouring lines in alphabetical order; 0 for few lines
    length: float  # mean length of its documents, relative to the others
    distance: float  # total variation distance of the frequencies of its common words; 0 for few words


def drift_warnings(
    source: TextSource, parts: Mapping[str, Part], config: DataConfig, *, cache: Path | None = None
) -> list[str]:
    """Return a warning if the data that is held out at the end or the start differs much from the rest."""
    if not parts or config.valid_from == "spread":
        return []
    first = "test" not in parts and config.valid_from == "start"
    found = drift(source, first=first, cache=cache)
    if found is None or (reason := explanation(found, first=first)) is None:
        return []
    held_out = " and ".join(name for name in parts if name != TRAINING)
    warning = (
        f"{source.spec!r}: {reason}, so the {held_out} data taken from there is unlike the training data; "
        "--set data.valid_from=spread takes it evenly from all of the data"
    )
    return [warning]


def explanation(found: Drift, *, first: bool = False) -> str | None:
    """Return the largest difference in words, if there is one that matters."""
    tenth = "first" if first else "last"
    if found.in_order >= SORTED:
        return "its lines are in alphabetical order"
    if not 1 / LENGTH_RATIO < found.length < LENGTH_RATIO:
        return f"documents of the {tenth} tenth are {found.length:.1f} times as long as the others"
    if found.distance >= DISTANCE:
        return f"the {tenth} tenth has other words than the rest (total variation distance {found.distance:.2f})"
    return None


def drift(source: TextSource, *, first: bool = False, cache: Path | None = None) -> Drift | None:
    """Compare the last tenth of a source, or the first, with the others; None for a short text. Cached."""
    entry = (cache or cache_root()) / fingerprint("drift", source.description(), first)
    known = find(entry, lambda folder: json.loads((folder / "drift.json").read_text(encoding="ascii")))
    if known is None:
        samples = list(_samples(source, count(source, cache=cache)))
        known = [] if len(samples) < TENTHS else list(compare_tenths(samples, first=first))
        with building(entry) as folder:
            (folder / "drift.json").write_text(json.dumps(known), encoding="ascii")
    return Drift(*known) if known else None


def compare_tenths(samples: Sequence[Sequence[str]], *, first: bool = False) -> Drift:
    """Compare the lines or documents of the first or last tenth with those of the others."""
    chosen = 0 if first else TENTHS - 1
    lines = [line for sample in samples for line in sample]
    order = [one.casefold() <= other.casefold() for one, other in pairwise(lines)]
    lengths = [sum(map(len, sample)) / max(1, len(sample)) for sample in samples]
    others = [length for number, length in enumerate(lengths) if number != chosen]
    enough = len(lines) >= FEWEST_LINES
    return Drift(
        sum(order) / len(order) if enough else 0.0,
        lengths[chosen] / max(1.0, sum(others) / len(others)) if enough else 1.0,
        _distance(samples, chosen),
    )


def _distance(samples: Sequence[Sequence[str]], chosen: int) -> float:
    """Return the total variation distance between the common words of a tenth and those of the others."""
    texts = ["\n".join(sample) for sample in samples]
    separated = sum(map(len, texts)) <= LONGEST_MEAN_WORD * sum(len(text.split()) for text in texts)
    counted = [Counter(WORD.findall(text) if separated else _bigrams(text)) for text in texts]
    here = counted.pop(chosen)
    there = sum(counted, Counter())
    if min(here.total(), there.total()) < FEWEST_WORDS:
        return 0.0
    common = [word for word, _ in (here + there).most_common(COMMON_WORDS)]
    return sum(abs(here[word] / here.total() - there[word] / there.total()) for word in common) / 2


def _bigrams(text: str) -> Iterator[str]:
    return map("".join, pairwise(text))


def _samples(source: TextSource, size: int) -> Iterator[list[str]]:
    """Yield the first documents or lines of each tenth of a source, in one pass."""
    if size < TENTHS:
        return
    edges = [size * number // TENTHS for number in range(TENTHS + 1)]
    stream = source.unit == "stream"
    part = Part(tuple(Span(a, min(b, a + SAMPLE)) if stream else Span(a, b) for a, b in pairwise(edges)))
    if not stream:
        yield from _first_documents(source.pieces(part), part)
        return
    waiting = "".join(source.pieces(part))
    for span in part.spans:
        text, waiting = waiting[: span.end - span.start], waiting[span.end - span.start :]
        yield text.split("\n")


def _first_documents(documents: Iterable[str], part: Part) -> Iterator[list[str]]:
    remaining = iter(documents)
    for start, end in part.spans:
        sample, characters = [], 0
        for _ in range(start, end):
            text = next(remaining)
            if characters < SAMPLE:
                sample.append(text)
                characters += len(text)
        yield sample
