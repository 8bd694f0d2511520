"""Numbers for display, with about three significant digits."""

from __future__ import annotations

import math
from collections.abc import Sequence


def count(number: float) -> str:
    """1234 as 1,234, and 1234567 as 1.23 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e5, "k")):
        if number >= size:
            unit = 1e3 if letter == "k" else size
            return f"{digits(number / unit)} {letter}"
    return f"{number:,.0f}" if number >= 10 or number == round(number) else f"{number:.2g}"


def memory(size: float) -> str:
    """612300000 as 612 MB, in units of 1000."""
    for unit, letters in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{digits(size / unit)} {letters}"
    return f"{size:.0f} B"


def duration(seconds: float) -> str:
    """90 as 1.5 min: seconds, minutes, hours or days."""
    for unit, letters in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{plain(round(seconds / unit, 1))} {letters}"
    return f"{plain(float(f'{seconds:.2g}'))} s" if seconds >= 0.001 else "0 s"


def listed(names: Sequence[str]) -> str:
    """Names as "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def digits(number: float) -> str:
    """Three significant digits."""
    places = max(0, 2 - math.floor(math.log10(number))) if number >= 0.001 else 3
    return f"{number:,.{places}f}"


def plain(number: float) -> str:
    """A number without trailing zeros."""
    return f"{number:g}"


def perplexity(number: float) -> str:
    return digits(number) if number < 1e5 else f"{number:.1e}"
