"""Data that needs no download: texts that come with Python, and pairs of dates and numbers (`builtin:dates`).

The texts differ between versions of Python. The pairs, English to German, are small but contain the phenomena of
translation: words change their order ("March 5" and "5. März"), two become one ("twenty-one" and "einundzwanzig"),
digits are copied or moved, and a German number names its units before its tens. Every source has exactly one correct
translation, so that a model can be evaluated by exact match.
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
    """Return the language reference of Python as `help()` shows it: English, about 465,000 characters."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def python() -> str:
    """Return the source of the standard library's modules and some of its packages, about 6 million characters."""
    library = Path(sysconfig.get_path("stdlib"))
    modules = sorted(library.glob("*.py"))
    for package in PACKAGES:
        modules += sorted((library / package).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in modules)


BUILTIN: dict[str, Callable[[], str]] = {"prose": prose, "python": python}


@dataclass(frozen=True, kw_only=True)
class BuiltinSource(TextSource):
    """One of the builtin texts."""

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
    """Open `builtin:NAME`; by default, as a stream."""
    name = spec.removeprefix("builtin:")
    if name == "dates":
        raise DataError("builtin:dates contains pairs, for translation families such as seq2seq; try builtin:prose")
    if name not in BUILTIN:
        raise DataError(f"there is no builtin text {name!r}; {nearest(name, BUILTIN)}")
    return BuiltinSource(spec=spec, unit=unit or "stream", normalisation=normalisation, name=name)


# builtin:dates

VERSION = 1  # of the patterns below and of how they are sampled
SEED = 2017
SIZES = {"train": 16_000, "validation": 2_000, "test": 2_000}
FIRST_DAY = date(1900, 1, 1)
DAYS = 200 * 365

DATE_FORMS = (  # patterns of Babel for each language
    Pair("MMMM d, y", "d. MMMM y"),
    Pair("EEEE, MMMM d, y", "EEEE, d. MMMM y"),
    Pair("MMM d, y", "d. MMM y"),  # "May 5, 2021" matches this and the first: both become "5. Mai 2021"
    Pair("d MMMM y", "d. MMMM y"),
    Pair("M/d/yy", "dd.MM.yy"),
)


@dataclass(frozen=True, kw_only=True)
class DatePairs(PairSource):
    """One split of the pairs; the splits share no source."""

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
    """Return all splits; deterministic for the same library versions."""
    _require_libraries()
    rng = random.Random(SEED)
    forms: list[Callable[[random.Random], Pair]] = [_date, _date, _cardinal, _ordinal, _year, _decimal]
    found: dict[str, Pair] = {}  # by source, so that each occurs once
    while len(found) < sum(SIZES.values()):
        pair = rng.choice(forms)(rng)
        found[pair.source] = pair
    drawn = iter(found.values())
    return {split: [next(drawn) for _ in range(size)] for split, size in SIZES.items()}


def _date(rng: random.Random) -> Pair:
    from babel.dates import format_date

    day = FIRST_DAY + timedelta(days=rng.randrange(DAYS))
    form = rng.choice(DATE_FORMS)
    return Pair(format_date(day, form.source, locale="en_US"), format_date(day, form.target, locale="de_DE"))


def _cardinal(rng: random.Random) -> Pair:
    return _in_words(_number(rng), "cardinal")


def _ordinal(rng: random.Random) -> Pair:
    return _in_words(_number(rng), "ordinal")


def _year(rng: random.Random) -> Pair:
    return _in_words(rng.randrange(1100, 2000), "year")


def _decimal(rng: random.Random) -> Pair:
    from babel.numbers import format_decimal

    number = _number(rng) + rng.randrange(1, 100) / 100
    return Pair(format_decimal(number, locale="en_US"), format_decimal(number, locale="de_DE"))


def _number(rng: random.Random) -> int:
    """Draw a number below 100,000, uniform over its number of digits."""
    return rng.randrange(int(10 ** rng.randrange(1, 6)))


def _in_words(number: int, kind: str) -> Pair:
    from num2words import num2words

    return Pair(num2words(number, to=kind, lang="en"), num2words(number, to=kind, lang="de"))


def _require_libraries() -> None:
    try:
        import babel  # noqa: F401
        import num2words  # noqa: F401
    except ImportError:
        raise MissingExtra("builtin:dates", "translation") from None
