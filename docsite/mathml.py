r"""A Markdown extension that turns LaTeX into MathML when the site is built, so that no page loads a script for it.

`$…$` is inline math and `$$…$$` a displayed equation, the delimiters that GitHub renders too. Code is left as it is.
mkdocs.yml names this module among its `markdown_extensions`; `make docs` puts the folder on the Python path.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

INLINE = r"(?<![\\$\w])\$(?![\s$])((?:\\.|[^$\\])+?)(?<!\s)\$(?![\w$])"
DISPLAY = re.compile(r"^\$\$(.+?)\$\$\s*$", re.DOTALL)
# latex2mathml renders an unknown command as text with its backslash: a mistake in the source, not an equation.
UNKNOWN = re.compile(r">\\[A-Za-z]+<")
# It makes named functions operators, which have space around them; as identifiers they are set like log and exp.
NAMED = re.compile(r"<mo>([A-Za-z]{2,})</mo>")
# A function name before a variable needs a thin space, which browsers do not add: log P.
APPLIED = re.compile(r"(?<!<msub>)(?<!<msup>)(?<!<munder>)(<mi>[A-Za-z]{2,}</mi>)(?=<m(?:i|sub|sup|subsup|over)>)")


class MathError(Exception):
    """An equation that cannot be converted."""


def to_mathml(latex: str, display: str) -> str:
    """Return the MathML element of an equation; raises MathError if it holds an unknown command."""
    latex = latex.strip().replace("{aligned}", "{align*}")  # GitHub's name, latex2mathml's name
    try:
        mathml = convert(latex, display=display)
    except Exception as error:
        raise MathError(f"cannot convert ${latex}$: {error!r}; fix the LaTeX") from error
    if unknown := UNKNOWN.search(mathml):
        raise MathError(f"unknown command {unknown[0][1:-1]} in ${latex}$; use a command that latex2mathml knows")
    return APPLIED.sub(r'\1<mspace width="0.17em" />', NAMED.sub(r"<mi>\1</mi>", mathml))


class InlineMath(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override] # noqa: N802
        return self.md.htmlStash.store(to_mathml(m[1], "inline")), m.start(0), m.end(0)


class DisplayMath(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return block.startswith("$$")

    def run(self, parent: Element, blocks: list[str]) -> bool:
        # An equation may hold blank lines, so blocks are joined until the closing delimiter.
        block = blocks.pop(0)
        while not DISPLAY.match(block) and blocks:
            block = f"{block}\n{blocks.pop(0)}"
        found = DISPLAY.match(block)
        if not found:
            raise MathError(f"$$ without a closing $$: {block[:60]!r}")
        element = SubElement(parent, "div", {"class": "equation"})
        element.text = self.parser.md.htmlStash.store(to_mathml(found[1], "block"))
        return True


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.parser.blockprocessors.register(DisplayMath(md.parser), "display_math", 95)
        md.inlinePatterns.register(InlineMath(INLINE, md), "inline_math", 185)  # after code, before escapes


def makeExtension(**settings: Any) -> MathML:  # noqa: N802
    return MathML(**settings)
