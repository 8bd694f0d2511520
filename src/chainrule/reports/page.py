"""A report as one self-contained HTML file.

The page includes its style sheet and script, and a content security policy that forbids loading anything and running
any other script, since it shows the user's data. All content is visible without JavaScript.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any, NamedTuple

from chainrule.reports import formatting

if TYPE_CHECKING:
    from jinja2 import Template

FILTERS: Mapping[str, Callable[..., Any]] = {
    "count": formatting.count,
    "memory": formatting.memory,
    "duration": formatting.duration,
    "perplexity": formatting.perplexity,
    "digits": formatting.digits,
}


class KeyMetric(NamedTuple):
    """A headline number of a report."""

    title: str
    value: str
    unit: str
    note: str
    name: str  # of the series


def render_page(
    package: str, template: str, *, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """Render a template from the `page` folder of a package; `filters` are additional Jinja filters."""
    folder = resources.files("chainrule.reports") / "page"
    script = (folder / "page.js").read_text(encoding="utf-8")
    return _template(package, template, filters or {}).render(
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **values,
    )


def render_part(template: str, **values: Any) -> str:
    """Render a template that is no page of its own, such as a picture."""
    return _template("chainrule.reports", template, {}).render(**values).strip()


def _template(package: str, template: str, filters: Mapping[str, Callable[..., Any]]) -> Template:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "page"), PackageLoader("chainrule.reports", "page")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**FILTERS, **filters}
    return environment.get_template(template)


def provenance() -> dict[str, str]:
    """Version, time and machine of results: fields of results.json."""
    return {
        "version": metadata.version("chainrule"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
    }


class ProtocolLine(NamedTuple):
    """One line of a protocol."""

    name: str
    value: str
    depth: int


def protocol_lines(protocol: Mapping[str, Any], depth: int = 0) -> list[ProtocolLine]:
    """A nested protocol as a flat list; a nested mapping becomes a heading without a value, then its lines."""
    lines: list[ProtocolLine] = []
    for name, value in protocol.items():
        if isinstance(value, Mapping):
            lines += [ProtocolLine(name, "", depth), *protocol_lines(value, depth + 1)]
        else:
            lines.append(ProtocolLine(name.replace("_", " "), _display(value), depth))
    return lines


def _display(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
