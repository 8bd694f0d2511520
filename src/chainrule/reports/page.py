"""A report as one file that needs nothing else to be read.

A page carries its own style and script, and a content security policy by which it can load nothing and run no other
script: what it shows is data of the user's. Everything is there without JavaScript.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from chainrule.reports import figures

FILTERS: Mapping[str, Callable[..., Any]] = {
    "count": figures.count,
    "memory": figures.memory,
    "duration": figures.duration,
    "perplexity": figures.perplexity,
    "digits": figures.digits,
}


class KeyFigure(NamedTuple):
    """A number that a reader should take away."""

    title: str
    value: str
    unit: str
    note: str
    name: str  # of the model


def page(package: str, template: str, *, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    """What a template among the `page` files of a package says of the values; `filters` are for its numbers."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "page"), PackageLoader("chainrule.reports", "page")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**FILTERS, **(filters or {})}
    folder = resources.files("chainrule.reports") / "page"
    script = (folder / "page.js").read_text(encoding="utf-8")
    return environment.get_template(template).render(
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )


class Fact(NamedTuple):
    """One fact of a protocol."""

    name: str
    value: str
    depth: int


def facts(told: Mapping[str, Any], depth: int = 0) -> list[Fact]:
    """Nested facts as a list; a fact with facts of its own heads them."""
    found: list[Fact] = []
    for name, value in told.items():
        if isinstance(value, Mapping):
            found += [Fact(name, "", depth), *facts(value, depth + 1)]
        else:
            found.append(Fact(name.replace("_", " "), _said(value), depth))
    return found


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
