"""`chainrule generate --draft`: speculative decoding gives the same text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chainrule.tasks import text as text_task
from tests.cli.test_bad_input import refused
from tests.cli.test_commands import small_gpt
from tests.conftest import Command


@pytest.fixture
def run(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    return small_gpt(chainrule, text_file, tmp_path / "gpt")


@pytest.fixture
def other(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    assert chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "small").code == 0
    return tmp_path / "small"


@pytest.mark.parametrize("how", ["--greedy", "--temperature 0.8 --seed 3", "--top-k 5 --num 3 --stop bird"])
def test_every_draft_gives_the_text_of_no_draft(chainrule: Command, run: Path, other: Path, how: str) -> None:
    words = ("generate", run, "--prompt", "the cat", "--length", 70, *how.split(), "--json")
    plain = [text["text"] for text in json.loads(chainrule(*words).out)]
    for draft in ("ngram", "self", other):
        outcome = chainrule(*words, "--draft", draft)
        assert outcome.code == 0, outcome.err
        assert [text["text"] for text in json.loads(outcome.out)] == plain


def test_a_single_text_is_streamed(chainrule: Command, run: Path) -> None:
    words = ("generate", run, "--prompt", "the ", "--length", 30, "--draft", "ngram")
    [text] = json.loads(chainrule(*words, "--json").out)
    assert chainrule(*words).out == "the " + text["text"] + "\n"


def test_a_draft_with_another_vocabulary_is_refused(
    chainrule: Command, run: Path, text_file: Path, tmp_path: Path
) -> None:
    small = tmp_path / "bytes"
    assert chainrule("train", "ngram", "--data", text_file, "--tokenizer", "bytes", "--out", small).code == 0
    refused(chainrule("generate", run, "--draft", small), "another vocabulary", "same tokenizer")


def test_a_missing_draft_run_is_refused(chainrule: Command, run: Path, tmp_path: Path) -> None:
    refused(chainrule("generate", run, "--draft", tmp_path / "nothing"), "nothing")


def test_a_draft_with_beam_search_is_refused(chainrule: Command, run: Path) -> None:
    refused(chainrule("generate", run, "--draft", "self", "--beam", 2), "draft")


def test_an_ngram_draft_needs_the_training_data(chainrule: Command, run: Path, text_file: Path) -> None:
    text_file.unlink()
    refused(chainrule("generate", run, "--draft", "ngram"), "training data", "use --draft self")


def test_a_draft_that_cannot_pay_off_is_not_tried_and_the_user_is_told(
    chainrule: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("generate", run, "--prompt", "the ", "--length", 60, "--seed", 3)
    plain = chainrule(*words)
    monkeypatch.setattr(text_task, "OPENING_SECONDS", 1e9)
    monkeypatch.setattr(text_task, "ngram_draft_model", None)  # it must not be called
    drafted = chainrule(*words, "--draft", "ngram")
    assert drafted.code == 0
    assert drafted.out == plain.out
    [line] = drafted.err.splitlines()
    assert line.startswith("draft: no draft was tried: ")
