"""Extractive question answering; properties of every family are in tests/testing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

import chainrule
from chainrule.errors import ConfigError
from chainrule.models.reader import SpanReader
from chainrule.tasks import load
from chainrule.tasks.answers import AnswerRun
from chainrule.testing.tiny import tiny_model
from chainrule.types import Batch, Sequences
from tests.features.folders import write_bert

ASKED = Sequences(torch.tensor([[1, 2, 0, 3, 4, 5], [1, 0, 2, 0, 0, 0], [4, 0, 0, 0, 0, 0]]), torch.tensor([6, 3, 2]))


def probabilities(model: SpanReader) -> list[dict[tuple[int, int], float]]:
    """The probability of every target, for each of the sources."""
    every = torch.cartesian_prod(torch.arange(model.vocabulary), torch.arange(model.vocabulary))
    found = []
    for row in range(len(ASKED.ids)):
        own = Sequences(ASKED.ids[[row] * len(every)], ASKED.lengths[[row] * len(every)])
        chances = model.log_prob(Batch(Sequences.full(every), own)).exp()
        found.append({(int(a), int(b)): float(p) for (a, b), p in zip(every, chances, strict=True)})
    return found


@torch.no_grad()
def test_only_spans_of_the_passage_and_no_answer_are_possible() -> None:
    model = tiny_model("reader")
    assert isinstance(model, SpanReader)
    long, short, empty = probabilities(model)
    assert {span for span, p in long.items() if p > 0} == {(0, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)}
    assert {span for span, p in short.items() if p > 0} == {(0, 0), (1, 1)}
    assert empty[0, 0] == pytest.approx(1)
    assert sum(long.values()) == pytest.approx(1)


@torch.no_grad()
def test_the_answer_depends_on_the_question() -> None:
    model = tiny_model("reader")
    other = ASKED.ids.clone()
    other[0, 1] = 3
    assert not torch.allclose(model.start(ASKED).logits[0], model.start(Sequences(other, ASKED.lengths)).logits[0])


COLOURS, ANIMALS = ("red", "green", "blue", "grey"), ("cat", "dog", "bird", "fish", "cow", "hen")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Texts of sentences such as "the cat is red", and questions for colours."""
    chance = random.Random(0)
    paragraphs = []
    for _ in range(60):
        facts = {animal: chance.choice(COLOURS) for animal in chance.sample(ANIMALS, 4)}
        context = " ".join(f"The {animal} is {colour} ." for animal, colour in facts.items())
        qas = [
            {
                "question": f"which colour has the {animal} ?",
                "id": animal,
                "answers": [{"text": colour, "answer_start": context.index(f"{animal} is {colour}") + len(animal) + 4}],
            }
            for animal, colour in facts.items()
        ]
        paragraphs.append({"context": context, "qas": qas})
    path = tmp_path / "colours.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def test_answers_are_found_in_texts_longer_than_a_passage(questions: Path, tmp_path: Path) -> None:
    settings = {
        "model": {"embedding": 16, "width": 32, "dropout": 0.0, "word_dropout": 0.0},
        "data": {"passage_length": 12, "passage_stride": 5, "negatives": 2},
        "train": {"learning_rate": 0.01, "batch_tokens": 1024},
    }
    run = chainrule.train("reader", data=str(questions), out=tmp_path / "run", steps=120, settings=settings, seed=0)
    assert isinstance(run, AnswerRun)
    score = run.info()["validation"]
    assert score["exact_match"] > 0.9
    assert score["exact_match"] > score["sentence_exact_match"]
    assert score["answerability"] > score["answerability_majority"]
    again = load(tmp_path / "run", AnswerRun)
    context = "The cow is blue . The cat is red . The hen is green . The fish is grey ."
    found = again.answer("which colour has the hen ?", context)
    assert found.text == "green"
    assert context[found.start :].startswith("green")
    assert found.probability > 0.5 > found.nowhere
    assert again.answer("which colour has the dog ?", context).nowhere > found.nowhere
    assert again.answer("which colour ?", " ").text == ""


def test_a_question_longer_than_the_context_of_a_pretrained_encoder_is_cut(
    questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bert(tmp_path / "bert", max_position_embeddings=64)
    content = json.loads(questions.read_text())
    paragraphs = content["data"][0]["paragraphs"] = content["data"][0]["paragraphs"][:12]
    for paragraph in (paragraphs[0], paragraphs[-1]):  # one for training, one for validation
        paragraph["qas"][0]["question"] = "which " * 300
    questions.write_text(json.dumps(content))
    settings = {
        "model": {"features": str(tmp_path / "bert"), "width": 8},
        "data": {"passage_length": 30, "passage_stride": 20, "negatives": 1},
    }
    run = chainrule.train("reader", data=str(questions), out=tmp_path / "run", steps=1, settings=settings)
    assert isinstance(run, AnswerRun)
    assert "are cut to the encoder's context of 63 tokens" in capsys.readouterr().err
    assert run.answer("which " * 300, "The hen is green .").cut
    assert not run.answer("which ?", "The hen is green .").cut


def test_a_passage_longer_than_the_context_of_a_pretrained_encoder_is_refused(questions: Path, tmp_path: Path) -> None:
    write_bert(tmp_path / "bert", max_position_embeddings=64)
    settings = {"model": {"features": str(tmp_path / "bert"), "width": 8}, "data": {"passage_length": 90}}
    settings["data"]["passage_stride"] = 50
    with pytest.raises(ConfigError, match=r"data.passage_length is 90, and the encoder reads 63 tokens"):
        chainrule.train("reader", data=str(questions), out=tmp_path / "run", steps=1, settings=settings)
