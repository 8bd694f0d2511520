"""A report as a browser parses it."""

from __future__ import annotations

from html.parser import HTMLParser

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"
"""User text that must be escaped."""


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)

    @property
    def addresses(self) -> list[str | None]:
        """All attributes that can refer to another file."""
        names = ("src", "href", "action", "data", "poster", "srcset")
        return [value for _, attributes in self.elements for name, value in attributes.items() if name in names]
