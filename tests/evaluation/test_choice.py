"""Multiple choice by likelihood, zero-shot and few-shot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import chainrule as package
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.choice import Choice, few_shot_prompt, read_choices, score_choices
from chainrule.tasks.text import TextRun
from chainrule.testing.tiny import tiny_model
from chainrule.tokenizers import train_tokenizer
from chainrule.types import Batch, Sequences
from tests.conftest import Command

LINES = "the cat says miau\nthe dog says wau wau\nthe cow says muh\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TextRun:
    folder = tmp_path_factory.mktemp("choice")
    (folder / "my.txt").write_text(LINES * 60)
    found = package.train("ngram", data=str(folder / "my.txt"), out=folder / "run", tokenizer="words", progress=False)
    assert isinstance(found, TextRun)
    return found


def write(path: Path, *records: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


SOUNDS = ["miau", "wau wau", "muh"]


def test_the_likeliest_ending_is_chosen(run: TextRun, tmp_path: Path) -> None:
    animals = ("cat", "dog", "cow")
    data = write(
        tmp_path / "x.jsonl",
        *({"context": f"the {name} says", "endings": SOUNDS, "label": label} for label, name in enumerate(animals)),
    )
    found = run.score_choices(data)
    assert found.accuracy_per_token == found.accuracy_per_byte == 1.0
    assert found.random_choice == pytest.approx(1 / 3)
    assert (found.examples, found.shots, found.truncated) == (3, 0, 0)


@torch.no_grad()
def test_scores_are_log_probabilities_of_the_ending_by_tokens_and_by_bytes() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["abcé"])
    model = tiny_model("recurrent", vocabulary=tokenizer.vocabulary)
    choice = Choice("ab", ("c", "éé"), 0)
    _, [found] = score_choices(model, tokenizer, [Choice("ab ", choice.endings, 0)])
    expected = []
    for ending in choice.endings:
        ids = tokenizer.encode("ab " + ending)
        nats = model.token_log_probs(Batch(Sequences.full(torch.tensor(np.array([ids])))))[0]
        expected.append(float(nats[3:].sum()))
    assert found.log_probs == pytest.approx(expected)
    assert found.per_token == int(expected[1] / 2 > expected[0])
    assert found.per_byte == int(expected[1] / 4 > expected[0])


def test_an_ending_is_separated_from_its_context_by_one_space() -> None:
    assert Choice("a", ("b", " c"), 0).joined(0) == ("a", " b")
    assert Choice("a", ("b", " c"), 0).joined(1) == ("a", " c")
    assert Choice("a ", ("b", "c"), 0).joined(0) == ("a ", "b")
    assert Choice("", ("b", "c"), 0).joined(0) == ("", "b")


def test_shots_are_examples_with_their_correct_endings() -> None:
    shots = [Choice("2 + 2 =", ("3", "4"), 1), Choice("1 + 2 =", ("3", "4"), 0)]
    assert few_shot_prompt(shots) == "2 + 2 = 4\n\n1 + 2 = 3\n\n"
    assert few_shot_prompt([]) == ""


@torch.no_grad()
def test_few_shot_examples_come_before_the_context() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["ab \n"])
    model = tiny_model("recurrent", vocabulary=tokenizer.vocabulary)
    shots = [Choice("a", ("b", "a"), 0)]
    plain, shown = (
        score_choices(model, tokenizer, [Choice("b", ("a", "b"), 0)], shots=given)[1] for given in ((), shots)
    )
    ids = tokenizer.encode("a b\n\nb a")
    nats = model.token_log_probs(Batch(Sequences.full(torch.tensor(np.array([ids])))))[0]
    assert shown[0].log_probs[0] == pytest.approx(float(nats[-2:].sum()))
    assert shown != plain


@torch.no_grad()
def test_a_context_that_is_too_long_is_cut_at_its_start() -> None:
    tokenizer = train_tokenizer("chars", lambda: ["ab "])
    model = tiny_model("gpt", vocabulary=tokenizer.vocabulary)  # its context is 16
    long, short = Choice("b" * 5 + "a" * 20, ("b", "bb"), 0), Choice("a" * 14, ("b", "bb"), 0)
    found, [one] = score_choices(model, tokenizer, [long])
    assert found.truncated == 2
    assert one.log_probs[0] == pytest.approx(score_choices(model, tokenizer, [short])[1][0].log_probs[0])
    with pytest.raises(DataError, match=r"an ending of 31 tokens .* does not fit into the context of 16"):
        score_choices(model, tokenizer, [Choice("a", ("b" * 30, "b"), 0)])


def test_a_label_may_be_a_number_or_the_ending(tmp_path: Path) -> None:
    data = write(
        tmp_path / "x.jsonl",
        {"context": "a", "endings": ["x", "y"], "label": 1},
        {"context": "a", "endings": ["x", "y"], "label": "y"},
        {"context": "a", "endings": ["x", "y"], "label": "1"},
    )
    assert [one.label for one in read_choices(data)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"context": "a", "endings": ["x", "y"]}, "line 1 .* has no field 'label', only .*; add it, or rename"),
        ({"context": "a", "ending": ["x", "y"], "label": 0}, "has no field 'endings', only .*; rename 'ending'"),
        ({"context": 3, "endings": ["x", "y"], "label": 0}, "field 'context' contains 3, not text; give a text"),
        ({"context": "a", "endings": ["x"], "label": 0}, "give a list of at least two texts"),
        ({"context": "a", "endings": ["x", "y"], "label": 2}, "has the label 2; give the number .*, 0 to 1"),
        ({"context": "a", "endings": ["x", ""], "label": 0}, "has an empty ending"),
    ],
)
def test_errors_name_the_line(record: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_choices(write(tmp_path / "x.jsonl", record))


def test_the_command_prints_both_accuracies(run: TextRun, tmp_path: Path, chainrule: Command) -> None:
    data = write(tmp_path / "x.jsonl", {"context": "the cow says", "endings": SOUNDS, "label": "muh"})
    shown = chainrule("score", str(run.path), "--task", "choice", "--data", data, "--shots", "1", "--examples", data)
    assert "per token" in shown.out
    assert "per byte" in shown.out
    values = json.loads(chainrule("score", str(run.path), "--task", "choice", "--data", data, "--json").out)
    assert values["accuracy_per_byte"] == 1.0
    assert (
        "--shots has no effect here: it needs --task choice"
        in chainrule("score", str(run.path), "--data", data, "--shots", "1").err
    )
    with pytest.raises(ConfigError, match="both their number and their file"):
        run.score_choices(data, shots=1)
    with pytest.raises(ConfigError, match="has 1 examples, and --shots asks for 2"):
        run.score_choices(data, shots=2, examples=data)
