"""Texts that come with Python, so that everything can be tried without a download.

They differ between versions of Python and are always the same for one interpreter.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from chainrule.data.source import Normalisation, Pair, PairSource, Split, TextSource, Unit
from chainrule.errors import DataError, MissingExtra, nearest

PACKAGES = ("asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging", "urllib")


def prose() -> str:
    """The language reference as `help()` shows it: English, about 465,000 characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def python() -> str:
    """The source of the standard library's modules and of some of its packages, about 6 million characters."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(library.glob("*.py"))
    for package in PACKAGES:
        modules += sorted((library / package).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in modules)


BUILTIN: dict[str, Callable[[], str]] = {"prose": prose, "python": python}


@dataclass(frozen=True, kw_only=True)
class BuiltinSource(TextSource):
    """One of the texts above."""

    name: str

    def text(self) -> str:
        return BUILTIN[self.name]()

    def identity(self) -> tuple[object, ...]:
        digest = hashlib.blake2b(self.text().encode(), digest_size=16).hexdigest()
        return ("builtin", self.name, platform.python_version(), digest)

    def origins(self) -> frozenset[str]:
        return frozenset({f"builtin:{self.name}"})

    def stream(self) -> Iterator[str]:
        yield self.text()

    def documents(self) -> Iterator[str]:
        yield from filter(None, self.text().split("\n"))


def open_builtin(spec: str, unit: Unit | None, normalisation: Normalisation) -> BuiltinSource:
    """`builtin:NAME`, a stream unless asked otherwise."""
    name = spec.removeprefix("builtin:")
    if name == "dates":
        raise DataError("builtin:dates holds pairs, for translation families such as seq2seq; try builtin:prose")
    if name not in BUILTIN:
        raise DataError(f"there is no builtin text {name!r}; {nearest(name, BUILTIN)}")
    return BuiltinSource(spec=spec, unit=unit or "stream", normalisation=normalisation, name=name)


# builtin:dates

VERSION = 1  # of the forms below and of how they are drawn
SEED = 2017
SIZES = {"train": 16_000, "validation": 2_000, "test": 2_000}
FIRST_DAY = date(1900, 1, 1)
DAYS = 200 * 365

DATE_FORMS = (  # Babel's patterns, one for each language
    Pair("MMMM d, y", "d. MMMM y"),
    Pair("EEEE, MMMM d, y", "EEEE, d. MMMM y"),
    Pair("MMM d, y", "d. MMM y"),  # "May 5, 2021" is of this form and of the first: both give "5. Mai 2021"
    Pair("d MMMM y", "d. MMMM y"),
    Pair("M/d/yy", "dd.MM.yy"),
)


@dataclass(frozen=True, kw_only=True)
class DatePairs(PairSource):
    """One split of the pairs; no source is in two of them."""

    split: Literal["train", "validation", "test"]

    def identity(self) -> tuple[object, ...]:
        _require_libraries()
        return ("dates", VERSION, self.split, version("babel"), version("num2words"))

    def origins(self) -> frozenset[str]:
        return frozenset({f"builtin:dates:{self.split}"})

    @property
    def languages(self) -> Pair:
        return Pair("en", "de")

    def pairs(self) -> Iterator[Pair]:
        yield from date_pairs()[self.split]

    def held_out(self, split: Split) -> PairSource | None:
        return replace(self, spec=f"{self.spec}, {split}", split=split)


@functools.cache
def date_pairs() -> dict[str, list[Pair]]:
    """All splits: the same on every machine with the same libraries."""
    _require_libraries()
    chance = random.Random(SEED)
    forms: list[Callable[[random.Random], Pair]] = [_date, _date, _cardinal, _ordinal, _year, _decimal]
    found: dict[str, Pair] = {}  # by source, so that each is there once
    while len(found) < sum(SIZES.values()):
        pair = chance.choice(forms)(chance)
        found[pair.source] = pair
    drawn = iter(found.values())
    return {split: [next(drawn) for _ in range(size)] for split, size in SIZES.items()}


def _date(chance: random.Random) -> Pair:
    from babel.dates import format_date

    day = FIRST_DAY + timedelta(days=chance.randrange(DAYS))
    form = chance.choice(DATE_FORMS)
    return Pair(format_date(day, form.source, locale="en_US"), format_date(day, form.target, locale="de_DE"))


def _cardinal(chance: random.Random) -> Pair:
    return _in_words(_number(chance), "cardinal")


def _ordinal(chance: random.Random) -> Pair:
    return _in_words(_number(chance), "ordinal")


def _year(chance: random.Random) -> Pair:
    return _in_words(chance.randrange(1100, 2000), "year")


def _decimal(chance: random.Random) -> Pair:
    from babel.numbers import format_decimal

    number = _number(chance) + chance.randrange(1, 100) / 100
    return Pair(format_decimal(number, locale="en_US"), format_decimal(number, locale="de_DE"))


def _number(chance: random.Random) -> int:
    """Below 100,000, short ones as often as long ones."""
    return chance.randrange(int(10 ** chance.randrange(1, 6)))


def _in_words(number: int, kind: str) -> Pair:
    from num2words import num2words

    return Pair(num2words(number, to=kind, lang="en"), num2words(number, to=kind, lang="de"))


def _require_libraries() -> None:
    try:
        import babel  # noqa: F401
        import num2words  # noqa: F401
    except ImportError:
        raise MissingExtra("builtin:dates", "translation") from None
