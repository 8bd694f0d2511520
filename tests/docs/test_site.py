"""The pages of the manual: every one is in the navigation, every link leads somewhere, every equation is MathML."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READMES = sorted(ROOT.glob("README*.md"))
LINK = re.compile(r"!?\[[^]]*]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The ids that the site gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"[`*$]", "", heading)).strip().lower() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert f": {page.relative_to(DOCS)}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8") + "\n"


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_equation_becomes_mathml(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("latex2mathml")
    monkeypatch.syspath_prepend(ROOT / "docsite")
    markdown = pytest.importorskip("markdown")
    html = markdown.markdown(page.read_text(encoding="utf-8"), extensions=["tables", "pymdownx.superfences", "mathml"])
    assert "$$" not in re.sub(r"<(code|pre).*?</\1>", "", html, flags=re.DOTALL)
    sys.modules.pop("mathml", None)


def test_the_diagrams_in_the_repository_are_those_that_the_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docsite")
    from diagrams import FOLDER, diagrams

    for name, svg in diagrams().items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == svg, "run python docsite/diagrams.py"


@pytest.mark.parametrize("page", sorted((DOCS / "families").glob("*.md")), ids=lambda page: page.stem)
def test_every_family_has_a_page_with_its_diagram_and_its_equation(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert f"](../images/families/{page.stem}.svg)" in text
    assert "$$" in text


def test_the_call_paths_name_modules_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docsite")
    from diagrams import PATHS

    for steps in PATHS.values():
        for _, module, _ in steps:
            assert (ROOT / "src" / "chainrule" / module).exists(), module
