"""Labels of pairs of texts: pair_classifier, in Python and on the command line."""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Command
from tests.features.folders import write_bert

import chainrule as package
from chainrule.data.labelled_pairs import encode_data, read_labelled_pairs
from chainrule.errors import DataError
from chainrule.evaluation.labels import label_set_score
from chainrule.features import Pretrained
from chainrule.models.pair_classifier import PairClassifier, PairClassifierConfig
from chainrule.tasks import load
from chainrule.tasks.pair_labels import PairLabelRun
from chainrule.types import Sequences

ANIMALS, COLOURS = ("cat", "dog", "cow", "pig"), ("red", "blue", "green", "white")


def pairs(count: int = 240) -> list[tuple[str, str, set[str]]]:
    """Whether two texts name the same animal and the same colour: nothing that one text alone shows."""
    chance = random.Random(0)
    found = []
    for _ in range(count):
        first, second = ((chance.choice(COLOURS), chance.choice(ANIMALS)) for _ in range(2))
        if chance.random() < 0.4:
            second = (first[0], second[1])
        if chance.random() < 0.4:
            second = (second[0], first[1])
        labels = {name for name, one, other in zip(("colour", "animal"), first, second, strict=True) if one == other}
        found.append((" ".join(first), " ".join(second), labels))
    return found


@pytest.fixture(scope="module")
def one_label(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = [f"{one}\t{other}\t{'same' if 'animal' in labels else 'different'}\n" for one, other, labels in pairs()]
    path.write_text("question\tpassage\tlabel\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def label_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    records = [{"text_a": one, "text_b": other, "labels": sorted(labels)} for one, other, labels in pairs()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def trained(data: Path, out: Path, steps: int = 120, **model: Any) -> PairLabelRun:
    settings = {
        "model": {"embedding": 16, "hidden": 32, "dropout": 0.0, "word_dropout": 0.0, **model},
        "train": {"batch_tokens": 512, "learning_rate": 0.01, "patience": None, "validate_every": 40},
    }
    run = package.train("pair_classifier", data=str(data), out=out, steps=steps, settings=settings, progress=False)
    assert isinstance(run, PairLabelRun)
    return run


@pytest.fixture(scope="module")
def run(one_label: Path, tmp_path_factory: pytest.TempPathFactory) -> PairLabelRun:
    return trained(one_label, tmp_path_factory.mktemp("runs") / "run")


def test_a_label_that_depends_on_both_texts_is_learnt(run: PairLabelRun, one_label: Path) -> None:
    assert run.labels == ("different", "same")
    assert not run.model.config.multi_label
    found = run.score(str(one_label))
    assert found.accuracy > 0.9
    assert found.accuracy > found.majority + 0.2


def test_the_best_weights_are_those_with_the_highest_validation_accuracy(run: PairLabelRun) -> None:
    records = [one for one in run.folder.records("metrics.jsonl") if "valid_accuracy" in one]
    assert run.config.train.best_by == "accuracy"
    assert run.info()["validation"]["accuracy"] == pytest.approx(max(one["valid_accuracy"] for one in records))


def test_a_pair_may_have_several_labels_or_none(label_sets: Path, tmp_path: Path) -> None:
    run = trained(label_sets, tmp_path / "run", steps=150)
    assert run.model.config.multi_label
    found = run.score(str(label_sets))
    assert found.accuracy > 0.8  # of whole sets
    assert found.model_dump()["micro_f1"] > 0.9
    predicted = [one.labels for one in run.predict([("red cat", "red cat"), ("red cat", "blue pig")]) if one]
    assert [set(labels) for labels in predicted] == [{"animal", "colour"}, set()]


def test_predict_reads_two_columns_or_json(
    run: PairLabelRun, chainrule: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = 'red cat\tblue cat\n\n{"question": "red cat", "passage": "blue pig"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode()), encoding="utf-8"))
    found = chainrule("predict", str(run.path)).out.split("\n")[:-1]
    assert [line.split("\t")[0] for line in found] == ["same", "", "different"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"red cat\n"), encoding="utf-8"))
    assert "has no tab; give two texts" in chainrule("predict", str(run.path)).err


def test_score_has_a_confusion_matrix(run: PairLabelRun, one_label: Path, chainrule: Command, tmp_path: Path) -> None:
    outcome = chainrule("score", str(run.path), "--data", str(one_label), "--picture", str(tmp_path / "c.png"))
    assert outcome.code == 0
    assert (tmp_path / "c.png").exists()


def test_a_table_may_have_several_labels_in_a_cell(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a b\tc\tred|blue\nd\te f\t\n")
    found = read_labelled_pairs(str(tmp_path / "x.tsv"), package.config.DataConfig(train="x"))
    assert [one[:3] for one in found] == [("a b", "c", ("red", "blue")), ("d", "e f", ())]


def test_errors_name_the_line(run: PairLabelRun, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\tsame\nonly one\n")
    with pytest.raises(DataError, match=r"line 2 of .* has 1 columns; give two texts and their label"):
        run.score(str(tmp_path / "x.tsv"))
    (tmp_path / "y.tsv").write_text("a\tb\tsimilar\n")
    with pytest.raises(DataError, match=r"line 1 of .* has the label 'similar', not found in the training data"):
        run.score(str(tmp_path / "y.tsv"))
    (tmp_path / "z.jsonl").write_text('{"a": "x", "label": "same"}\n')
    with pytest.raises(DataError, match="none of question, query"):
        run.score(str(tmp_path / "z.jsonl"))


def test_questions_of_squad_are_pairs_of_question_and_passage_that_answer_or_do_not(tmp_path: Path) -> None:
    context = "the cat sat on the mat . " + "nobody was there at all . " * 12
    asked = [
        {"id": str(number), "question": "what sat ?", "answers": [{"text": "cat", "answer_start": 4}]}
        for number in range(6)
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}))
    settings = {
        "model": {"embedding": 8, "hidden": 8},
        "data": {"passage_length": 16, "passage_stride": 12, "negatives": 2},
        "train": {"batch_tokens": 128, "learning_rate": 0.02, "patience": None},
    }
    run = package.train("pair_classifier", data=str(path), out=tmp_path / "run", steps=40, settings=settings)
    assert isinstance(run, PairLabelRun)
    assert run.labels == ("answer", "no answer")
    found = encode_data(str(path), run.config.data, run.tokenizer, run.labels)
    assert np.asarray(found.target.tokens).reshape(-1, 2).sum(0).tolist() == [6, 12]
    assert run.score(str(path)).accuracy == 1.0


def test_early_stopping_by_accuracy_is_the_default(one_label: Path, tmp_path: Path) -> None:
    settings = {"model": {"embedding": 4, "hidden": 4}, "train": {"validate_every": 1, "learning_rate": 1e-9}}
    run = package.train("pair_classifier", data=str(one_label), out=tmp_path / "run", steps=60, settings=settings)
    assert run.info()["steps"] < 10


# The model


def test_scores_follow_the_equations() -> None:
    torch.manual_seed(0)
    config = PairClassifierConfig(
        vocabulary=2, source_vocabulary=9, labels=("a", "b", "c"), separator=3, embedding=6, hidden=5
    )
    model = PairClassifier(config).double().eval()
    ids = [1, 2, 3, 2, 7]
    state = model.initial(Sequences.full(torch.tensor([ids])), 1)
    assert model.matches is not None
    vectors = model.encoder(Sequences.full(torch.tensor([ids])))[0]
    m = vectors + model.token_types[[0, 0, 0, 1, 1]] + model.matches[[0, 1, 0, 1, 0]]
    query, keys = torch.tanh(model.query(m.mean(0))), torch.tanh(model.key(m))
    context = torch.softmax(keys @ query / 6**0.5, 0) @ m
    expected = model.out(model.inner(context).relu())
    torch.testing.assert_close(state.scores[0, :, 1], expected)
    assert not state.scores[0, :, 0].any()


def test_the_second_text_has_the_second_token_type_of_a_pretrained_bert(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert", max_position_embeddings=16)
    plain, typed = (Pretrained.open(tmp_path / "bert") for _ in range(2))
    ids = Sequences.full(torch.tensor([[1, 2, 3, 1, 2]]))
    typed.separator = 3
    same, other = plain(ids), typed(ids)
    assert not torch.allclose(same, other)
    typed.encoder.token_types[1] = typed.encoder.token_types[0]
    torch.testing.assert_close(typed(ids), same)


def test_only_the_last_blocks_of_a_pretrained_model_are_fine_tuned(one_label: Path, tmp_path: Path) -> None:
    write_bert(tmp_path / "bert", max_position_embeddings=16)
    model = {"features": str(tmp_path / "bert"), "fine_tune": True, "fine_tune_layers": 1}
    run = trained(one_label, tmp_path / "run", steps=2, **model)
    before = Pretrained.open(tmp_path / "bert", fine_tune=True).state_dict()
    after = load(run.path).model.encoder.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    last = max(int(name.split(".")[2]) for name in before if ".blocks." in name)
    assert changed
    assert all(name.startswith(f"encoder.blocks.{last}.") for name in changed)


def test_metrics_of_label_sets() -> None:
    right = np.array([[1, 0], [1, 1], [0, 0]], bool)
    found = label_set_score(right, np.array([[0.9, 0.2], [0.8, 0.4], [0.3, 0.1]]), ("a", "b"))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.label_accuracy == pytest.approx(5 / 6)
    assert found.micro_f1 == pytest.approx(2 * 2 / (2 + 3))
    assert found.f1 == {"a": 1.0, "b": 0.0}
