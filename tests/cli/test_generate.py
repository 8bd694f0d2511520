"""`chainrule generate`: prompts from standard input, one text per line, and interactive sessions."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chainrule as package
from tests.cli.test_bad_input import refused
from tests.conftest import Command

Input = Callable[[str], None]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An n-gram model of a stream, one of short documents, and one that reads from right to left."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 40)
    (folder / "names.txt").write_text("anna\nbella\nclara\ndora\nemma\nfiona\n" * 20)
    quiet = {"progress": False}
    package.train("ngram", data=str(folder / "text.txt"), out=folder / "stream", **quiet)
    documents = {"data": {"unit": "documents"}}
    package.train("ngram", data=str(folder / "names.txt"), out=folder / "names", settings=documents, **quiet)
    reverse = {"model": {"model": {"family": "finite_memory", "width": 8, "memory": 3}}}
    package.train("reverse", data=str(folder / "text.txt"), out=folder / "reverse", steps=2, settings=reverse, **quiet)
    return folder


@pytest.fixture
def from_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Input:
    """Redirect standard input to a file."""

    def redirect(text: str) -> None:
        (tmp_path / "input").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", (tmp_path / "input").open(encoding="utf-8"))

    return redirect


def test_each_line_of_a_file_is_a_prompt_and_each_line_of_the_output_its_text(
    chainrule: Command, runs: Path, from_file: Input
) -> None:
    from_file("the cat\n\nthe dog \n")
    outcome = chainrule("generate", runs / "stream", "--length", 60, "--greedy")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("the cat sat")
    assert lines[2].startswith("the dog ")


def test_prompts_in_a_batch_give_what_each_gives_alone(chainrule: Command, runs: Path, from_file: Input) -> None:
    prompts = ["the ", "a", "the dog sat on"]
    words = ("generate", runs / "stream", "--length", 30, "--json")
    from_file("\n".join(prompts))
    together = json.loads(chainrule(*words, "--seed", 5, "--prompt", "-", "--batch", 2).out)
    alone = [json.loads(chainrule(*words, "--seed", 5 + at, "--prompt", one).out) for at, one in enumerate(prompts)]
    assert [text["text"] for text in together] == [text["text"] for [text] in alone]
    assert [text["prompt"] for text in together] == prompts


def test_an_empty_file_of_prompts_is_refused_and_an_empty_pipe_is_no_prompt(
    chainrule: Command, runs: Path, from_file: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_file("")
    refused(chainrule("generate", runs / "stream"), "standard input is empty", "--prompt TEXT")
    read, write = os.pipe()
    os.close(write)
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    assert chainrule("generate", runs / "stream", "--length", 5).code == 0


def test_a_pipe_is_read_as_a_file_is(chainrule: Command, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, b"the cat\nthe dog\n")
    os.close(write)
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    outcome = chainrule("generate", runs / "stream", "--length", 5)
    assert [line[:7] for line in outcome.out.splitlines()] == ["the cat", "the dog"]


def test_short_documents_are_printed_one_per_line(chainrule: Command, runs: Path) -> None:
    outcome = chainrule("generate", runs / "names", "-n", 8)
    lines = outcome.out.splitlines()
    assert len(lines) == 8
    assert all(line.isalpha() for line in lines)
    assert "log P" in chainrule("generate", runs / "names", "--num", 2, "--no-plain").out
    assert "log P" in chainrule("generate", runs / "stream", "--num", 2, "--prompt", "the").out
    plain = chainrule("generate", runs / "stream", "--num", 2, "--prompt", "the", "--length", 120, "--plain")
    assert [line[:3] for line in plain.out.splitlines()] == ["the", "the"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "the ß"], "'ß'"),
        (["--prompt", "the", "--temperature", "0"], "(--greedy)"),
        (["--prompt", "the", "--temperature", "-1"], "temperature"),
        (["--prompt", "the", "--top-p", "2"], "top_p"),
        (["--prompt", "the", "--stop", ""], "a stop string is empty"),
        (["--prompt", "the", "--draft", "nosuch"], "nosuch"),
    ],
)
def test_nothing_is_printed_before_an_error(chainrule: Command, runs: Path, options: list[str], message: str) -> None:
    outcome = chainrule("generate", runs / "stream", *options)
    refused(outcome, message)
    assert outcome.out == ""


def test_a_wrong_prompt_of_many_is_named_before_any_text(chainrule: Command, runs: Path, from_file: Input) -> None:
    from_file("the\nthe ß\n")
    outcome = chainrule("generate", runs / "stream")
    refused(outcome, "prompt 2 has tokens", "'ß'")
    assert outcome.out == ""


def test_a_right_to_left_model_puts_its_text_before_the_prompt(chainrule: Command, runs: Path) -> None:
    outcome = chainrule("generate", runs / "reverse", "--prompt", "the log", "--length", 12)
    assert outcome.out.rstrip("\n").endswith("the log")
    assert len(outcome.out.strip("\n")) > len("the log")


def test_python_continues_several_prompts(runs: Path) -> None:
    texts = package.load(runs / "stream").generate(["the cat", "the dog"], num=2, length=5)
    assert [text.prompt for text in texts] == ["the cat", "the cat", "the dog", "the dog"]


def test_an_interactive_session_continues_undoes_and_repeats(chainrule: Command, runs: Path, from_file: Input) -> None:
    from_file(
        "the cat\n\n/text\n/undo\n/text\n/greedy\n/temperature 0\nthe ß\n"
        "/temperature 3\n/again\n/length 3\n/length\n/new\n/text\n"
    )
    outcome = chainrule("generate", runs / "stream", "--interactive", "--length", 10, "--seed", 3)
    assert outcome.code == 0, outcome.err
    first, second, whole, undone, again, length, empty = outcome.out.split("\n")[:7]
    assert first.startswith("the cat")
    assert whole == first + second
    assert undone == first
    assert again.startswith("the cat")
    assert again != first
    assert (length, empty) == ("length 3", "")
    problems = outcome.err.splitlines()
    assert len(problems) == 3
    assert "unknown command /greedy" in problems[0]
    assert "temperature: 0 leaves nothing to sample" in problems[1]
    assert "'ß'" in problems[2]


def test_an_interactive_session_starts_anew_when_a_document_has_ended(
    chainrule: Command, runs: Path, from_file: Input
) -> None:
    from_file("an\n/text\nbe\n/quit\nnever read\n")
    outcome = chainrule("generate", runs / "names", "-i", "--greedy")
    assert outcome.out.splitlines() == ["anna", "", "bella"]
    assert "the text has ended" in outcome.err


def test_an_interactive_session_is_reproducible(chainrule: Command, runs: Path, from_file: Input) -> None:
    outputs = []
    for _ in range(2):
        from_file("the\n\n/again\n")
        outputs.append(chainrule("generate", runs / "stream", "-i", "--length", 20).out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("option", [["--beam", "2"], ["--num", "2"], ["--plain"], ["--prompt", "-"]])
def test_options_that_make_no_sense_interactively_are_refused(
    chainrule: Command, runs: Path, option: list[str]
) -> None:
    refused(chainrule("generate", runs / "stream", "-i", *option), "--interactive and --", "exclude each other")
