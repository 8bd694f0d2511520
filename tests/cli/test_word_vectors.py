"""`chainrule words`: neighbours, analogies, scores and maps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_bad_input import refused
from tests.conftest import Command


@pytest.fixture
def run(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "words"
    words = ("--set", "model.width=8", "--epochs", 3, "--threads", 1)
    outcome = chainrule("train", "word2vec", "--data", text_file, "--out", out, *words)
    assert outcome.code == 0, outcome.err
    assert "chainrule words" in outcome.out
    return out


def test_neighbours_and_analogies(chainrule: Command, run: Path) -> None:
    found = json.loads(chainrule("words", run, "nearest", "cat", "bird", "--num", 4, "--json").out)
    assert list(found) == ["cat", "bird"]
    assert len(found["cat"]) == 4
    similarities = [one["similarity"] for one in found["cat"]]
    assert similarities == sorted(similarities, reverse=True)
    assert found["cat"][0]["word"] in chainrule("words", run, "nearest", "cat").out
    [[first, *_]] = json.loads(chainrule("words", run, "analogy", "cat", "mat", "dog", "--json").out).values()
    assert first["word"] not in ("cat", "mat", "dog")


def test_scores_count_out_of_vocabulary_questions(chainrule: Command, run: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("cat\tdog\t7\nbird\tworm\t5\ncook\tsmoke\t6\nking\tqueen\t8\n")
    found = json.loads(chainrule("words", run, "score", tmp_path / "pairs.tsv", "--json").out)
    assert (found["pairs"], found["unknown"]) == (3, 1)
    (tmp_path / "analogies.txt").write_text(": animals\ncat mat dog log\ncat mat king queen\n")
    found = json.loads(chainrule("words", run, "score", tmp_path / "analogies.txt", "--json").out)
    assert found["total"]["answered"] == 1
    assert found["total"]["questions"] == 2
    assert "animals" in chainrule("words", run, "score", tmp_path / "analogies.txt").out


def test_a_map_is_plotted(chainrule: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "map.png"
    assert chainrule("words", run, "map", "cat", "--num", 8, "--out", out).code == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_exported_vectors_can_be_imported_again(chainrule: Command, run: Path, tmp_path: Path) -> None:
    assert chainrule("export", run, "--to", "word2vec", "--out", tmp_path / "out").code == 0
    before = chainrule("words", run, "nearest", "cat", "--json").out
    for form in ("txt", "bin"):
        back = tmp_path / form
        file = tmp_path / "out" / f"vectors.{form}"
        assert chainrule("import", file, "--from", "word2vec", "--out", back).code == 0
        assert json.loads(chainrule("words", back, "nearest", "cat", "--json").out) == json.loads(before)


def test_an_out_of_vocabulary_word_is_refused(chainrule: Command, run: Path) -> None:
    refused(chainrule("words", run, "nearest", "brid"), "'brid'", "'bird'")
    refused(chainrule("words", run, "analogy", "cat", "mat", "doge"), "'doge'", "'dog'")


def test_invalid_queries_are_refused(chainrule: Command, run: Path, tmp_path: Path) -> None:
    refused(chainrule("words", run, "analogy", "cat", "mat"), "three words", "2")
    refused(chainrule("words", run, "map", "cat"), "--out", ".png")
    refused(chainrule("words", run, "map", "cat", "--out", tmp_path / "map.doc"), ".png")
    refused(chainrule("words", run, "nearest", "cat", "--out", tmp_path / "map.png"), "map")
    refused(chainrule("words", run, "score", tmp_path / "nowhere"), "nowhere")


def test_a_run_without_word_vectors_is_refused(chainrule: Command, run: Path, text_file: Path, tmp_path: Path) -> None:
    assert chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "ngram").code == 0
    refused(chainrule("words", tmp_path / "ngram", "nearest", "cat"), "ngram", "has a vector for each word")
    refused(chainrule("export", tmp_path / "ngram", "--to", "word2vec", "--out", tmp_path / "o"), "word2vec")
    refused(chainrule("generate", run), "generates text", "chainrule words")
    refused(chainrule("export", run, "--to", "arpa", "--out", tmp_path / "o"), "ngram")
