"""`generate --draft ngram`: the same text, and a line on stderr where the draft does not pay off."""

from __future__ import annotations

from pathlib import Path

import pytest

from chainrule.tasks import text as text_task
from tests.conftest import Command

WORDS = ("--prompt", "the ", "--length", 60, "--seed", 3)


@pytest.fixture
def weak(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    """A tiny gpt that has hardly been trained."""
    sets = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=32", "train.batch_tokens=256"]
    flags = [word for setting in sets for word in ("--set", setting)]
    assert chainrule("train", "gpt", "--data", text_file, "--out", tmp_path / "weak", "--steps", 2, *flags).code == 0
    return tmp_path / "weak"


def test_a_draft_that_does_not_pay_off_is_not_made_and_the_user_is_told(
    chainrule: Command, weak: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = chainrule("generate", weak, *WORDS)
    monkeypatch.setattr(text_task, "OPENING_SECONDS", 1e9)
    monkeypatch.setattr(text_task, "ngram_draft_model", None)  # it must not be called
    drafted = chainrule("generate", weak, *WORDS, "--draft", "ngram")
    assert drafted.code == 0
    assert drafted.out == plain.out
    [line] = drafted.err.splitlines()
    assert line.startswith("draft: no draft was prepared: ")


def test_a_draft_of_lost_training_data_is_refused_before_anything_is_printed(
    chainrule: Command, weak: Path, text_file: Path
) -> None:
    text_file.unlink()
    outcome = chainrule("generate", weak, *WORDS, "--draft", "ngram", "--num", 2)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "use --draft self" in outcome.err
