"""Texts that come with Python, so that everything can be tried without a download.

They differ between versions of Python and are always the same for one interpreter.
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chainrule.data.source import Normalisation, Source, Unit
from chainrule.errors import DataError, nearest

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
class BuiltinSource(Source):
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
