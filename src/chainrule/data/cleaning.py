"""Filtering of training pairs, with a report of what was dropped and why.

Cleaned pairs are cached, one file per side with one sentence per line, stripped. Only training data is filtered by
length, equality and repetition. Of validation and test data only pairs with an empty side are dropped, so that scores
remain comparable with published ones.

Lengths are in bytes of UTF-8: words are not comparable across scripts (Chinese has no spaces), while translations of a
sentence have similar sizes in bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from chainrule.config import DataConfig
from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.source import DOCUMENTS_PER_CALL, Normalisation, Pair, PairSource, TextSource
from chainrule.data.splits import Part
from chainrule.data.text import read_lines
from chainrule.errors import DataError

if TYPE_CHECKING:  # types.py imports torch, which reading data does not need
    from chainrule.types import Progress

MANY = 0.1  # fraction of pairs with equal sides above which a note is printed

REASONS = {  # reason: setting
    "an empty side": None,
    "a side that is too long": "data.max_side_bytes",
    "sides of very unequal length": "data.length_ratio",
    "two equal sides": "data.identical",
    "appeared before": "data.duplicates",
}


@dataclass(frozen=True, kw_only=True)
class CleaningRules:
    """Conditions on a pair. By default both sides must be non-empty."""

    longest: int | None = None  # bytes
    ratio: float | None = None
    distinct: bool = False  # the sides must differ
    once: bool = False  # only the first occurrence is kept

    @classmethod
    def for_training(cls, config: DataConfig) -> CleaningRules:
        return cls(
            longest=config.max_side_bytes,
            ratio=config.length_ratio,
            distinct=config.identical == "drop",
            once=config.duplicates == "drop",
        )


@dataclass
class CleaningReport:
    """Numbers of pairs read, kept, and dropped by reason."""

    read: int = 0
    kept: int = 0
    identical: int = 0  # kept pairs with equal sides
    dropped: dict[str, int] = field(default_factory=dict)  # by reason

    def summary(self) -> str:
        """Return one line: `1,000 pairs read, 990 kept; dropped: 6 with an empty side, 4 that appeared before`."""
        why = ", ".join(
            f"{count:,} {'that' if reason == 'appeared before' else 'with'} {reason}"
            for reason, count in self.dropped.items()
        )
        return f"{self.read:,} pairs read, {self.kept:,} kept" + (f"; dropped: {why}" if why else "")

    def notes(self, spec: str) -> list[str]:
        """Return notes for the user: dropped pairs, and suspiciously many pairs with equal sides."""
        notes = [f"{spec}: {self.summary()}"] if self.dropped else []
        if self.identical > MANY * self.kept:
            notes.append(
                f"{spec}: {self.identical:,} of {self.kept:,} pairs have the same text on both sides; check the data, "
                "or drop them with data.identical=drop"
            )
        return notes


def sentence(text: str, normalisation: Normalisation) -> str:
    """Return a text as one line: normalised, line ends replaced by spaces, stripped."""
    return " ".join(normalisation(text).splitlines()).strip()


class Cleaner:
    """Filters pairs and counts what it drops."""

    def __init__(self, rules: CleaningRules, normalisation: Normalisation) -> None:
        self.rules = rules
        self.normalisation = normalisation
        self.report = CleaningReport()
        self._dropped: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def clean(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Yield the kept pairs, normalised; the report is complete when all are consumed."""
        for pair in pairs:
            self.report.read += 1
            pair = Pair(*(sentence(side, self.normalisation) for side in pair))
            reason = self._reason_to_drop(pair)
            if reason is not None:
                self._dropped[reason] += 1
                continue
            self.report.kept += 1
            self.report.identical += pair.source == pair.target
            yield pair
        self.report.dropped = {reason: self._dropped[reason] for reason in REASONS if self._dropped[reason]}

    def _reason_to_drop(self, pair: Pair) -> str | None:
        """Return the first reason to drop a pair, or None."""
        if not (pair.source and pair.target):
            return "an empty side"
        rules = self.rules
        shorter, longer = sorted(len(side.encode()) for side in pair)
        if rules.longest is not None and longer > rules.longest:
            return "a side that is too long"
        if rules.ratio is not None and longer > rules.ratio * shorter:
            return "sides of very unequal length"
        if rules.distinct and pair.source == pair.target:
            return "two equal sides"
        if rules.once:
            mark = hashlib.blake2b("\n".join(pair).encode(), digest_size=8).digest()
            if mark in self._seen:
                return "appeared before"
            self._seen.add(mark)
        return None


@dataclass(frozen=True, kw_only=True)
class CleanSide(TextSource):
    """One side of cleaned pairs, one document per line."""

    name: Literal["source", "target"]
    cleaned: Path  # folder in the cache

    @classmethod
    def of(cls, pairs: PairSource, name: Literal["source", "target"], cleaned: Path) -> CleanSide:
        """Open a side, which is normalised already."""
        return cls(spec=pairs.spec, unit="documents", normalisation=Normalisation(), name=name, cleaned=cleaned)

    def identity(self) -> tuple[object, ...]:
        return ("side", self.name, self.cleaned.name)

    def origins(self) -> frozenset[str]:
        return frozenset({str(self.cleaned)})

    def stream(self) -> Iterator[str]:
        for line in self.documents():
            yield line + "\n"

    def documents(self) -> Iterator[str]:
        return read_lines(self.cleaned / f"{self.name}.txt")


@dataclass(frozen=True)
class CleanPairs:
    """Cleaned pairs in the cache."""

    source: CleanSide
    target: CleanSide
    report: CleaningReport

    def first(self, count: int, part: Part | None = None) -> list[Pair]:
        """Return at most `count` pairs as text, from the start or of a part."""
        sides = zip(self.source.documents(), self.target.documents(), strict=True)
        chosen = sides if part is None else part.choose(sides)
        return [Pair(*pair) for pair in islice(chosen, count)]


def cleaned(
    pairs: PairSource,
    rules: CleaningRules,
    normalisation: Normalisation,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CleanPairs:
    """Clean pairs, unless the result is cached. Detecting repetitions takes about 60 bytes per pair."""
    entry = (cache or cache_root()) / fingerprint("pairs", pairs.identity(), asdict(rules), asdict(normalisation))
    report = find(entry, _read_report)
    if report is None:
        with building(entry) as folder:
            report = _write(folder, pairs, Cleaner(rules, normalisation), progress)
    return CleanPairs(CleanSide.of(pairs, "source", entry), CleanSide.of(pairs, "target", entry), report)


def _write(folder: Path, pairs: PairSource, cleaner: Cleaner, progress: Progress | None) -> CleaningReport:
    """Write source.txt, target.txt and report.json."""
    report = cleaner.report
    with (
        (folder / "source.txt").open("w", encoding="utf-8", newline="\n") as sources,
        (folder / "target.txt").open("w", encoding="utf-8", newline="\n") as targets,
    ):
        for source, target in cleaner.clean(pairs.pairs()):
            sources.write(source + "\n")
            targets.write(target + "\n")
            if progress is not None and report.kept % DOCUMENTS_PER_CALL == 0:
                progress(report.kept, 0)
    if not report.read:
        raise DataError(f"{pairs.spec!r} contains no pairs; check the data")
    if not report.kept:
        settings = [setting for reason in report.dropped if (setting := REASONS[reason])]
        remedy = "check the data" + (f", or change {' and '.join(settings)}" if settings else "")
        raise DataError(f"no pair of {pairs.spec!r} is left: {report.summary()}; {remedy}")
    (folder / "report.json").write_text(json.dumps(asdict(report)), encoding="utf-8")
    return report


def _read_report(entry: Path) -> CleaningReport:
    return CleaningReport(**json.loads((entry / "report.json").read_text(encoding="utf-8")))
