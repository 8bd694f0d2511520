"""Whether the end of the data resembles the rest: if not, validation data from the end misleads.

The data is divided into tenths, and a sample of the last, or the first, is compared with samples of the others: the
order of lines, the length of documents, and the frequencies of common words. Prose, code and poetry have a total
variation distance of 0.04 to 0.24 between the word frequencies of a tenth and the rest, a folder of unlike logs 0.5.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.source import TextSource, sizes
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

PlacedShard = tuple[TextSource, int, int]  # and where it begins and ends in the source, in characters or documents


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
        samples = _samples(source, cache or cache_root())
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


def _samples(source: TextSource, cache: Path) -> list[list[str]]:
    """The first documents or lines of each tenth; of a large source, only shards in which a tenth begins are read."""
    shards = source.shards()
    ends = list(accumulate(sizes(shards, cache=cache)))
    if ends[-1] < TENTHS:
        return []
    edges = [ends[-1] * number // TENTHS for number in range(TENTHS + 1)]
    placed = list(zip(shards, [0, *ends], ends, strict=False))
    return _first_lines(placed, edges) if source.unit == "stream" else _first_documents(placed, edges)


def _first_lines(shards: Iterable[PlacedShard], edges: Sequence[int]) -> list[list[str]]:
    part = Part(tuple(Span(start, min(end, start + SAMPLE)) for start, end in pairwise(edges)))
    text = "".join(
        piece
        for shard, begin, end in shards
        if (here := part.within(begin, end)).size
        for piece in shard.any_pieces(here)
    )
    ends = [0, *accumulate(span.end - span.start for span in part.spans)]
    return [text[start:end].split("\n") for start, end in pairwise(ends)]


def _first_documents(shards: Iterable[PlacedShard], edges: Sequence[int]) -> list[list[str]]:
    samples: list[list[str]] = [[] for _ in range(TENTHS)]
    characters = [0] * TENTHS
    for shard, begin, end in shards:
        first, last = (bisect_right(edges, index) - 1 for index in (begin, end - 1))
        if min(characters[first : last + 1], default=SAMPLE) >= SAMPLE:
            continue
        for index, text in enumerate(shard.any_pieces(), start=begin):
            tenth = bisect_right(edges, index) - 1
            if characters[tenth] < SAMPLE:
                samples[tenth].append(text)
                characters[tenth] += len(text)
            elif tenth == last:
                break
    return samples
