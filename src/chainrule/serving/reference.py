"""`/docs`: the endpoints as a page without scripts and without anything from a network."""

from __future__ import annotations

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 0 auto; padding: 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0 }
tr { border-bottom: 1px solid #8884 } code { font-family: ui-monospace, monospace } summary { cursor: pointer }
h2 { margin-top: 2rem } details { margin: .6rem 0 } .verb { font-weight: 600; display: inline-block; min-width: 3.5rem }
"""


def reference_page(schema: dict[str, Any]) -> str:
    """The page of an OpenAPI schema."""
    groups: dict[str, list[str]] = {}
    for path, verbs in schema["paths"].items():
        for verb, operation in verbs.items():
            groups.setdefault(operation.get("tags", ["other"])[0], []).append(_operation(schema, path, verb, operation))
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f'<p>The same as <a href="openapi.json">OpenAPI schema</a>.</p>{body}</body></html>'
    )


def _operation(schema: dict[str, Any], path: str, verb: str, operation: dict[str, Any]) -> str:
    about = escape(operation.get("description", ""))
    rows = "".join(
        _row(one["name"], one.get("schema", {}), one.get("required", False), schema)
        for one in operation.get("parameters", [])
    )
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _resolved(content.get("schema", {}), schema)
    for name, field in body.get("properties", {}).items():
        rows += _row(name, field, name in body.get("required", []), schema)
    table = f"<table><tr><th>parameter<th>type<th>meaning</tr>{rows}</table>" if rows else ""
    return (
        f'<details><summary><span class="verb">{verb.upper()}</span> <code>{escape(path)}</code> '
        f"{escape(operation.get('summary', ''))}</summary><p>{about}</p>{table}</details>"
    )


def _row(name: str, field: dict[str, Any], required: bool, schema: dict[str, Any]) -> str:
    meaning = escape(field.get("description", ""))
    default = field.get("default")
    if default is not None:
        meaning += f" Default: <code>{escape(str(default))}</code>."
    note = " (required)" if required else ""
    return f"<tr><td><code>{escape(name)}</code>{note}<td>{escape(_type(field, schema))}<td>{meaning}</tr>"


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one, schema) for one in field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"].rsplit("/", 1)[1])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    return str(field.get("const", field.get("type", "any")))


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in field:
        return field
    found: dict[str, Any] = schema["components"]["schemas"][field["$ref"].rsplit("/", 1)[1]]
    return found
