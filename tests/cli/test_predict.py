"""`chainrule predict`: labels, tags and answers, also for malformed input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from chainrule.config import DataConfig, RunConfig
from chainrule.families import build
from chainrule.testing.tiny import TINY
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder
from tests.conftest import Command


def make_run(path: Path, family: str, tokenizer: Tokenizer, data: dict[str, Any] | None = None, **model: Any) -> Path:
    """A run with random weights."""
    variant = next(iter(TINY[family].values()))
    settings = {**variant, "source_vocabulary": tokenizer.vocabulary, **model}
    torch.manual_seed(3)
    network = build(family, settings)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    folder = RunFolder(path)
    values = network.config.model_dump(mode="json", exclude_none=True)
    config = RunConfig(family=family, data=DataConfig(train="train.tsv", unit="documents", **data or {}), model=values)
    folder.create(config, tokenizer)
    folder.write_weights(network)
    return path


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    words = Words(["a", "b", "c", "d"])
    return make_run(tmp_path / "classifier", "classifier", words, vocabulary=3, labels=("x", "y", "z"))


@pytest.fixture
def tagger(tmp_path: Path) -> Path:
    letters = Chars("\nabcd")
    separator = int(letters.encode("\n")[0])
    return make_run(tmp_path / "tagger", "tagger", letters, vocabulary=2, labels=("N", "V"), separator=separator)


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    words = Words(["a", "b", "c", "d"])
    data = {"passage_length": 4, "passage_stride": 2, "negatives": 1}
    return make_run(tmp_path / "reader", "reader", words, data, vocabulary=5, separator=0)


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch):
    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return put


def test_a_classifier_prints_a_label_and_its_probability_per_line(
    chainrule: Command, classifier: Path, type_in
) -> None:
    type_in(b"\xef\xbb\xbfa b c\n\nd\r\n   \na b c")
    outcome = chainrule("predict", classifier)
    assert outcome.code == 0, outcome.err
    first, empty, other, blank, again = outcome.out.split("\n")[:-1]
    assert (empty, blank) == ("", "")
    assert first == again
    label, probability = first.split("\t")
    assert label in "xyz"
    assert 1 / 3 < float(probability) <= 1
    assert first != other


def test_json_has_all_probabilities(chainrule: Command, classifier: Path, type_in) -> None:
    type_in(b"a b\n\n")
    one, empty = chainrule("predict", classifier, "--json").out.split("\n")[:-1]
    record = json.loads(one)
    assert empty == ""
    assert sum(record["probabilities"].values()) == pytest.approx(1)
    assert record["probability"] == max(record["probabilities"].values())


def test_more_lines_than_are_buffered_keep_their_order(chainrule: Command, classifier: Path, type_in) -> None:
    lines = [" ".join("abcd"[(i * k) % 4] for k in range(i % 5)) for i in range(1100)]
    type_in("\n".join(lines).encode())
    together = chainrule("predict", classifier).out.split("\n")
    for number in (0, 7, 600, 1093):
        type_in(lines[number].encode())
        alone = chainrule("predict", classifier).out.split("\n")[0] if lines[number] else ""
        assert together[number] == alone


@pytest.mark.parametrize("search", [(), ("--search", "greedy"), ("--search", "beam", "--beam", 3)])
def test_a_tagger_prints_one_tag_per_word(
    chainrule: Command, tagger: Path, type_in, search: tuple[object, ...]
) -> None:
    type_in("ab cd a\n\nq ä\n".encode())
    first, empty, unknown, _ = chainrule("predict", tagger, *search).out.split("\n")
    assert len(first.split()) == 3
    assert set(first.split()) <= {"N", "V"}
    assert empty == ""
    assert len(unknown.split()) == 2


def test_a_reader_prints_an_answer_per_question(chainrule: Command, reader: Path, type_in) -> None:
    type_in(b'a b?\tc d a b, c d\n\n{"question": "a?", "context": "b c"}\n')
    outcome = chainrule("predict", reader)
    assert outcome.code == 0, outcome.err
    first, empty, second, _ = outcome.out.split("\n")
    answer, probability, nowhere = first.split("\t")
    assert answer in "c d a b, c d"
    assert 0 <= float(probability) <= 1 - float(nowhere) + 1e-3
    assert empty == ""
    assert second.split("\t")[0] in ("b", "c", "b c")


@pytest.mark.parametrize(
    ("line", "message"), [(b"no tab\n", "line 1 has no tab"), (b'{"question": 1}\n', "line 1 has no question")]
)
def test_a_line_without_a_question_is_refused(
    chainrule: Command, reader: Path, type_in, line: bytes, message: str
) -> None:
    type_in(line)
    outcome = chainrule("predict", reader)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_line_that_is_not_utf8_is_predicted_with_its_bytes_replaced(
    chainrule: Command, classifier: Path, type_in
) -> None:
    type_in(b"a\nb \xe4\nc \xff\na\n")
    outcome = chainrule("predict", classifier)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 4
    assert "2 lines are not UTF-8 text, the first is line 2" in outcome.err


def test_labels_are_scored_and_their_confusion_plotted(chainrule: Command, classifier: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data = tmp_path / "dev.tsv"
    data.write_text("a b\tx\nc\ty\nd d\tz\na\tx\n")
    outcome = chainrule("score", classifier, "--data", data, "--picture", tmp_path / "confusion.png", "--json")
    assert outcome.code == 0, outcome.err
    score = json.loads(outcome.out)
    assert score["examples"] == 4
    assert sum(map(sum, score["confusion"])) == 4
    assert (tmp_path / "confusion.png").stat().st_size > 1000
    shown = chainrule("score", classifier, "--data", data).out
    assert "macro-F1" in shown
    assert len(RunFolder(classifier).records("scores.jsonl")) == 2


def test_tags_and_answers_are_scored(chainrule: Command, tagger: Path, reader: Path, tmp_path: Path) -> None:
    tags = tmp_path / "dev.tsv"
    tags.write_text("ab\tN\ncd\tV\n\nd\tN\n")
    assert json.loads(chainrule("score", tagger, "--data", tags, "--json").out)["examples"] == 3
    answers = [{"text": "d a", "answer_start": 2}]
    qas = [{"question": "a b?", "id": "1", "answers": answers}]
    squad = tmp_path / "dev.json"
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": "c d a b c d d", "qas": qas}]}]}))
    outcome = chainrule("score", reader, "--data", squad, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["questions"] == 1
    assert "no confusion matrix" in chainrule("score", reader, "--data", squad, "--picture", tmp_path / "x.png").err


def test_runs_of_another_kind_are_refused_in_one_line(chainrule: Command, classifier: Path, type_in) -> None:
    outcome = chainrule("generate", classifier, "--prompt", "a")
    assert outcome.code == 2
    assert "is a classifier, which labels texts" in outcome.err
    type_in(b"a\n")
    assert "needs no search" in chainrule("predict", classifier, "--search", "beam").err
    assert "give annotated data" in chainrule("score", classifier, "--text", "a").err


def test_a_label_outside_the_training_labels_is_refused(chainrule: Command, classifier: Path, tmp_path: Path) -> None:
    data = tmp_path / "dev.tsv"
    data.write_text("a b\tx\nc\tq\n")
    outcome = chainrule("score", classifier, "--data", data)
    assert outcome.code == 2
    assert "line 2 of" in outcome.err
    assert "has the label 'q'" in outcome.err
