"""t5 on pairs of question and answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command

import chainrule as package
from chainrule.tasks import load
from chainrule.tasks.filling import FillingRun
from chainrule.tasks.generated_answers import GeneratedAnswerRun, answer_metrics

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
SIZES: dict[str, Any] = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "context": 32}


def questions() -> list[tuple[str, str]]:
    return [(f"{ask} the capital of {land} ?", city) for ask in ("what is", "name") for land, city in CAPITALS.items()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("answers") / "qa.tsv"
    path.write_text("question\tanswer\n" + "".join(f"{one}\t{other}\n" for one, other in questions() * 12))
    return path


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> GeneratedAnswerRun:
    found = package.train(
        "t5",
        data=str(data),
        out=tmp_path_factory.mktemp("runs") / "qa",
        tokenizer="words",
        steps=120,
        settings={"model": SIZES, "train": {"batch_tokens": 256}},
        progress=False,
    )
    assert isinstance(found, GeneratedAnswerRun)
    return found


def test_answers_are_generated_and_scored_by_exact_match_and_f1(run: GeneratedAnswerRun, data: Path) -> None:
    found = run.score_answers(str(data))
    assert found.exact_match == found.f1 == 1.0
    assert found.questions == 96
    assert found.nats_per_token < 0.5
    [[best]] = load(run.path, GeneratedAnswerRun).answer("name the capital of Japan ?")
    assert best.text == "Tokyo"


def test_a_repeated_question_is_kept(run: GeneratedAnswerRun) -> None:
    assert run.config.data.duplicates == "keep"
    assert run.config.data.pairs


def test_the_command_line_generates_and_scores_answers(run: GeneratedAnswerRun, data: Path, chainrule: Command) -> None:
    outcome = chainrule("generate", str(run.path), "--prompt", "what is the capital of Italy ?")
    assert outcome.out == "Rome\n"
    shown = chainrule("generate", str(run.path), "--prompt", "name the capital of Spain ?", "--num", "2", "--json")
    assert json.loads(shown.out)[0]["text"] == "Madrid"
    refused = chainrule("generate", str(run.path), "--prompt", "name", "--temperature", "0.5").err
    assert "--temperature has no effect here: it needs a run that generates text, not answers" in refused
    values = json.loads(chainrule("score", str(run.path), "--data", str(data), "--json").out)
    assert values["exact_match"] == 1.0


def test_json_lines_with_question_and_answer_are_pairs_and_other_text_is_not(tmp_path: Path) -> None:
    records = [{"question": one, "answer": other} for one, other in questions()]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "my.txt").write_text("the capital of France is Paris\n" * 40)
    settings = {"model": {**SIZES, "width": 8}, "train": {"batch_tokens": 64}}
    kinds = [
        type(package.train("t5", data=str(tmp_path / name), out=tmp_path / f"{name}-run", steps=1, settings=settings))
        for name in ("qa.jsonl", "my.txt")
    ]
    assert kinds == [GeneratedAnswerRun, FillingRun]


def test_a_run_on_plain_text_can_be_fine_tuned_on_pairs(tmp_path: Path, data: Path) -> None:
    (tmp_path / "my.txt").write_text("what is the capital of France ? Paris . name Rome Italy\n" * 40)
    settings = {"model": {**SIZES, "width": 8}, "train": {"batch_tokens": 64}}
    text = package.train("t5", data=str(tmp_path / "my.txt"), out=tmp_path / "text", steps=1, settings=settings)
    run = package.train("t5", data=str(data), out=tmp_path / "qa", steps=1, start_from=str(text.path))
    assert isinstance(run, GeneratedAnswerRun)
    assert run.model.vocabulary == text.model.vocabulary


def test_metrics_are_those_of_squad() -> None:
    found = answer_metrics(["The cat.", "a big dog"], ["cat", "dog"])
    assert found == {"exact_match": 0.5, "f1": pytest.approx((1 + 2 / 3) / 2)}
