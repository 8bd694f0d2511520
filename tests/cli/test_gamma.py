"""`--gamma` and `chainrule sweep-gamma`: the branches of a hybrid, and their mixtures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chainrule as package
from chainrule.decoding import Search
from tests.cli.test_bad_input import refused
from tests.cli.test_commands import small_gpt
from tests.cli.test_translate_draft import LINES, Give, create, lines
from tests.conftest import Command

__all__ = ["lines"]


TEXT = "the cat sat on the mat and the dog sat on the log\n" * 60


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gamma")
    (folder / "text.txt").write_text(TEXT)
    sizes = {"width": 16, "layers": 1}
    data, out = str(folder / "text.txt"), folder / "chunks"
    package.train("hybrid_language", data=data, steps=60, out=out, scored=False, settings={"model": sizes})
    return out


@pytest.fixture
def translation_run(tmp_path: Path) -> Path:
    return create(tmp_path / "hybrid", "hybrid")


def test_a_score_stores_its_gamma(chainrule: Command, text_run: Path) -> None:
    scores = {}
    for gamma in (None, "0", "0.3", "1"):
        options = () if gamma is None else ("--gamma", gamma)
        outcome = chainrule("score", text_run, "--text", "the cat sat", "--json", *options)
        assert outcome.code == 0, outcome.err
        found = json.loads(outcome.out)
        assert found["protocol"]["gamma"] == (None if gamma is None else float(gamma))
        scores[gamma] = found["nats_per_token"]
    assert len(set(scores.values())) == 4
    assert "γ 0.3" in chainrule("score", text_run, "--text", "the cat", "--gamma", 0.3).out
    stored = [json.loads(line)["protocol"].get("gamma") for line in (text_run / "scores.jsonl").open()]
    assert stored[-5:] == [None, 0, 0.3, 1, 0.3]


def test_gamma_selects_the_branch_that_generates(chainrule: Command, text_run: Path) -> None:
    texts = {
        gamma: chainrule("generate", text_run, "--prompt", "the", "--length", 40, "--gamma", gamma).out
        for gamma in (0, 0.5, 1)
    }
    assert len(set(texts.values())) == 3
    run = package.load(text_run).with_gamma(1)
    assert "the" + run.generate("the", length=40)[0].text + "\n" == texts[1]


def test_gamma_selects_the_branch_that_translates(chainrule: Command, lines: Give, translation_run: Path) -> None:
    found = {}
    for gamma in (0, 1):
        lines()
        outcome = chainrule("translate", translation_run, "--gamma", gamma)
        assert outcome.code == 0, outcome.err
        found[gamma] = outcome.out.splitlines()
    assert found[0] != found[1]
    run = package.load(translation_run).with_gamma(1)
    texts = LINES.decode().splitlines()
    assert [one.text for [one] in run.translate(texts, Search(beam=1))] == found[1]


def test_other_families_and_other_numbers_are_refused(
    chainrule: Command, text_run: Path, text_file: Path, tmp_path: Path
) -> None:
    gpt = small_gpt(chainrule, text_file, tmp_path / "gpt")
    for words in (("generate", gpt), ("score", gpt, "--text", "the")):
        refused(chainrule(*words, "--gamma", 0.5), "is a gpt", "hybrid_language")
    assert chainrule("generate", text_run, "--gamma", 1.5).code == 2
    refused(chainrule("generate", text_run, "--gamma", 1, "--draft", "self"), "one pass", "leave it out")


def test_a_sweep_writes_a_table_and_a_plot(chainrule: Command, text_run: Path, text_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = chainrule(
        "sweep-gamma", text_run, "--data", text_file, "--gammas", "0,0.5,1", "--out", tmp_path / "sweep"
    )
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.splitlines()[:5]] == ["γ", "learned", "0", "0.5", "1"]
    points = json.loads((tmp_path / "sweep" / "results.json").read_text())
    assert [point["gamma"] for point in points] == [None, 0, 0.5, 1]
    assert len({point["bits_per_byte"] for point in points}) == 4
    assert (tmp_path / "sweep" / "plot.svg").read_text().startswith("<?xml")
    refused(
        chainrule("sweep-gamma", text_run, "--data", text_file, "--gammas", "0,2", "--out", tmp_path / "s"), "0 to 1"
    )
    refused(chainrule("sweep-gamma", text_run, "--out", tmp_path / "s"), "--data", "--references")


def test_translations_are_swept_too(chainrule: Command, translation_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sacrebleu")
    sources, references = tmp_path / "test.en", tmp_path / "test.de"
    sources.write_text("a b\nc d\n")
    references.write_text("x y\nz\n")
    words = ("sweep-gamma", translation_run, "--source", sources, "--references", references, "--gammas", "0,1")
    outcome = chainrule(*words, "--out", tmp_path / "sweep", "--json")
    assert outcome.code == 0, outcome.err
    points = json.loads(outcome.out)
    assert [point["gamma"] for point in points] == [None, 0, 1]
    assert all(point["bleu"] is not None and point["bits_per_byte"] is None for point in points)
