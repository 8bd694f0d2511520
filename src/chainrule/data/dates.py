"""`builtin:dates`: dates and numbers, English to German, so that translation can be tried without a download.

Small, and yet translation in earnest: words change their order ("March 5" and "5. März"), two become one ("twenty-one"
and "einundzwanzig"), digits are copied or moved, and a German number names its units before its tens. Every source has
one right translation, so that a model can be held to exact matches.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, timedelta
from importlib.metadata import version
from typing import Literal

from chainrule.data.pairs import Pair, PairSource, Split
from chainrule.errors import MissingExtra

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
