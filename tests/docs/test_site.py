"""The pages of the manual: every one is in the navigation, every link leads somewhere, every equation is MathML."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from chainrule.config import DataConfig, TrainConfig
from chainrule.decoding import Sampling, Search
from chainrule.families import FAMILIES, family

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


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_conflict_markers(page: Path) -> None:
    assert not re.search(r"^(<{7}|>{7}|={7}$)", page.read_text(encoding="utf-8"), re.MULTILINE)


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


def settings_of(config: type[BaseModel], above: str = "") -> Iterator[str]:
    """The settings of a family, nested ones with a dot."""
    for name, field in config.model_fields.items():
        yield above + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from settings_of(kind, f"{above}{name}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_every_setting_in_a_table_exists(page: Path) -> None:
    known = {*settings_of(DataConfig, "data."), *settings_of(TrainConfig, "train."), *settings_of(TrainConfig)}
    if page.parent.name == "families":
        known |= {*settings_of(family(page.stem).Config)}
    else:
        known |= {name for kind in FAMILIES.values() for name in settings_of(kind.Config, "model.")}
        known |= {*settings_of(Search), *settings_of(Sampling)}
    for table in re.findall(r"^\| setting \|.*?(?=\n\n)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for row in table.splitlines()[2:]:
            for name in re.findall(r"`([a-z_.]+)(?: ?=[^`]*)?`", row.split("|")[1]):
                assert name in known, name


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_named_in_the_manual_exists(page: Path) -> None:
    package = ROOT / "src" / "chainrule"
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(\w+(?:/\w+)*(?:/|\.py))`", text):
        folder = name.split("/")[0]
        if folder in {path.name for path in package.iterdir()}:
            assert (package / name).exists(), name
    for name in re.findall(r"\bchainrule((?:\.[a-z]\w+)+)", text):
        found: object = importlib.import_module("chainrule")
        for part in name.strip(".").split("."):
            dotted = f"{getattr(found, '__name__', '')}.{part}"
            found = getattr(found, part, None) or importlib.import_module(dotted)


def test_the_packages_are_listed_in_the_order_of_the_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [name.strip() for layer in contracts[0]["layers"] for name in reversed(layer.split("|"))]
    rows = re.findall(
        r"^\| ((?:`[\w.]+/?`[ ]?)+)\|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = [re.sub(r"\.py$|/$", "", name) for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert [f"chainrule.{name}" for name in listed if f"chainrule.{name}" in layers] == layers[::-1]
