"""Help texts: what is written in the source is what is shown."""

from __future__ import annotations

import re

import pytest
import typer
from rich.console import ConsoleDimensions

from chainrule.cli import app
from tests.conftest import Command

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
WITHOUT_THREADS = {"models", "info", "export", "import", "data", "plan"}  # threads would speed up none of these


def shown_words(text: str) -> list[str]:
    """The words of a help text in Markdown, without the marks of code and emphasis."""
    return re.sub(r"[`*]", "", text).split()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_every_word_of_its_source(chainrule: Command, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("rich.console.Console.size", property(lambda _: ConsoleDimensions(4000, 100)))
    outcome = chainrule(name, "--help")
    assert outcome.code == 0
    found = set(outcome.out.replace("│", " ").split())
    command = COMMANDS[name]
    for text in [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]:
        missing = [word for word in shown_words(text) if word not in found]
        assert not missing, f"{name} --help lost {missing} of {text!r}"


def test_every_verb_that_computes_has_threads() -> None:
    without = {name for name, command in COMMANDS.items() if not any("--threads" in one.opts for one in command.params)}
    assert without <= WITHOUT_THREADS
