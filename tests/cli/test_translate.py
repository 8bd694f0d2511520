"""`chainrule translate`, `align` and `score --task translation`, also for malformed input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from chainrule.cli.align import text_map
from chainrule.config import DataConfig, RunConfig
from chainrule.decoding import Alignment
from chainrule.tasks import load
from chainrule.testing import tiny_model
from chainrule.tokenizers.words import Words
from chainrule.training.checkpoint import RunFolder
from tests.conftest import Command


def make_run(path: Path, seed: int = 3) -> Path:
    """A transformer with random weights that translates the words a to d into x, y and z."""
    model = tiny_model("transformer")
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    folder = RunFolder(path)
    config = RunConfig(
        family="transformer",
        tokenizer="words",
        data=DataConfig(train="pairs.tsv", unit="documents"),
        model=model.config.model_dump(mode="json", exclude_none=True),
    )
    folder.create(config, Words(["x", "y", "z"]), Words(["a", "b", "c", "d"]))
    folder.write_weights(model)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch):
    """Put bytes on standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))

    return put


def translations(run: Path, *texts: str) -> list[str]:
    return [best.text for best, *_ in load(run).translate(texts)]


def test_translate_prints_one_line_per_line_in_order(chainrule: Command, run: Path, type_in) -> None:
    lines = ["a b", "c d a b", "", "d", "a b c", "  "]
    type_in("\n".join(lines).encode())
    outcome = chainrule("translate", run, "--batch", 2)
    assert outcome.code == 0, outcome.err
    assert outcome.out == "\n".join(translations(run, *lines)) + "\n"
    assert outcome.out.split("\n")[2] == ""
    assert "4 of 6 lines translated; 2 empty, passed through" in outcome.err


def test_untranslatable_lines_are_passed_through_and_counted(chainrule: Command, run: Path, type_in) -> None:
    long = "a " * 10_000
    type_in(b"a b\ncaf\xe9 d\r\n" + long.encode() + b"\nd\n")
    outcome = chainrule("translate", run)
    assert outcome.code == 0, outcome.err
    first, last = translations(run, "a b", "d")
    assert outcome.out.split("\n") == [first, "caf\ufffd d", long, last, ""]
    assert "2 of 4 lines translated; 1 too long, passed through; 1 not text, passed through" in outcome.err


def test_empty_input_gives_empty_output(chainrule: Command, run: Path, type_in) -> None:
    type_in(b"")
    outcome = chainrule("translate", run)
    assert (outcome.code, outcome.out) == (0, "")
    assert "0 of 0 lines" in outcome.err


def test_a_byte_order_mark_is_not_part_of_the_first_line(chainrule: Command, run: Path, type_in) -> None:
    type_in(b"\xef\xbb\xbfa b\n")
    assert chainrule("translate", run).out == translations(run, "a b")[0] + "\n"


def test_n_best_lines_have_the_source_line_and_the_score(chainrule: Command, run: Path, type_in) -> None:
    type_in(b"a b\nd\n")
    options = ("translate", run, "--n-best", 3, "--beam", 4, "--length-penalty", 0.6, "--normaliser", "wu")
    rows = [line.split(" ||| ") for line in chainrule(*options).out.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] * 3
    type_in(b"a b\nd\n")
    found = [json.loads(line) for line in chainrule(*options, "--json").out.splitlines()]
    assert [entry["line"] for entry in found] == [0, 1]
    texts = [one for entry in found for one in entry["translations"]]
    assert [row[1] for row in rows] == [one["text"] for one in texts]
    assert [float(row[2]) for row in rows] == pytest.approx([one["score"] for one in texts], abs=1e-4)
    assert texts[0].keys() == {"text", "log_prob", "score", "tokens", "finished"}


def test_copying_replaces_all_unknown_words(chainrule: Command, run: Path, type_in) -> None:
    type_in(b"a Zorg\nZig Zag\nb\n")
    outcome = chainrule("translate", run, "--copy-unknown", "--beam", 1)
    assert outcome.code == 0, outcome.err
    assert "\ufffd" not in outcome.out


def test_candidates_are_ranked_by_two_runs(chainrule: Command, run: Path, tmp_path: Path, type_in) -> None:
    other = make_run(tmp_path / "other", seed=5)
    results = []
    for one, two in ((run, other), (other, run)):
        type_in(b"a b\nc\n\n")
        outcome = chainrule("translate", one, "--agree-with", two)
        assert outcome.code == 0, outcome.err
        results.append(outcome.out)
    assert results[0] == results[1]
    type_in(b"a\n")
    assert "leave out copy_unknown" in chainrule("translate", run, "--agree-with", other, "--copy-unknown").err


def test_a_run_that_does_not_translate_is_refused_in_one_line(
    chainrule: Command, text_file: Path, tmp_path: Path, type_in
) -> None:
    out = tmp_path / "ngram"
    assert chainrule("train", "ngram", "--data", text_file, "--out", out).code == 0
    for options in (["translate", out], ["align", out, "--source", "a"]):
        type_in(b"a\n")
        outcome = chainrule(*options)
        assert outcome.code == 2
        assert "which generates text" in outcome.err
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--normaliser", "mean"], "'normaliser'"),
        (["--agree-with", "nowhere"], "no run at"),
        (["--checkpoint", "worst"], "best or last"),
        (["--shortlist"], "has no shortlist"),
    ],
)
def test_an_error_is_one_line(chainrule: Command, run: Path, type_in, options: list[str], message: str) -> None:
    type_in(b"a\n")
    outcome = chainrule("translate", run, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_translations_are_scored_against_references(chainrule: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    source, references = tmp_path / "source.txt", tmp_path / "references.txt"
    lines = ["a b c", "", "d d a"]
    source.write_text("\n".join(lines) + "\n")
    references.write_text("\n".join(translations(run, *lines)) + "\n")
    options = ("score", run, "--task", "translation", "--source", source, "--references", references)
    found = json.loads(chainrule(*options, "--json").out)
    assert found["exact_match"] == 1.0
    assert found["sentences"] == 3
    assert found["nats_per_token"] > 0
    assert "tok:13a" in found["bleu_signature"]
    table = chainrule(*options, "--target-language", "zh").out
    assert "exact match" in table
    assert "tok:zh" in table


def test_missing_or_unpaired_files_are_refused(chainrule: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    two, one, latin = (tmp_path / name for name in ("two", "one", "latin"))
    two.write_text("a\nb\n")
    one.write_text("x\n")
    latin.write_bytes(b"caf\xe9\nx\n")
    task = ("score", run, "--task", "translation", "--source", two)
    for options, message in (
        ((*task, "--references", one), "got 1 references for 2 sources"),
        ((*task, "--references", latin), "is not UTF-8 text"),
        ((*task, "--references", tmp_path / "none"), "there is no file"),
        (task, "takes the files --source and --references"),
        (("score", run, "--task", "poetry"), "likelihood, translation or choice"),
        (("score", run, "--text", "x", "--source", "a", "--references", one), "--references needs --task translation"),
    ):
        outcome = chainrule(*options)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err


def test_align_prints_one_line_per_target_token(chainrule: Command, run: Path) -> None:
    options = ("align", run, "--source", "a b Zorg", "--target", "x y z")
    found = json.loads(chainrule(*options, "--json").out)
    assert found["source"] == ["a", " b", " \ufffd", ""]
    assert [sum(row) for row in found["weights"]] == pytest.approx([1.0] * 4)
    *heads, x, y, z, end = chainrule(*options).out.rstrip("\n").split("\n")
    assert heads == ["  a b \ufffd ⏎"]
    assert [line[0] for line in (x, y, z, end)] == ["x", "y", "z", "⏎"]


def test_the_text_map_is_darker_for_more_attention() -> None:
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]])
    assert text_map(Alignment(["ab", " c", ""], ["x", " yz", ""], weights)).split("\n") == [
        "   a",
        "   b c ⏎",
        " x █",
        "yz ░ ▒ ░",
        " ⏎   ░ ▓",
    ]


def test_align_plots_the_translation_of_the_model(chainrule: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, beginning in (("heat.png", b"\x89PNG"), ("heat.svg", b"<?xml")):
        outcome = chainrule("align", run, "--source", "a b c", "--out", tmp_path / name)
        assert outcome.code == 0, outcome.err
        assert (tmp_path / name).read_bytes().startswith(beginning)


def test_align_refuses_unknown_formats_and_empty_sources(chainrule: Command, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for options, message in (
        (("--source", "a", "--out", tmp_path / "heat.doc"), "must end in .png"),
        (("--source", " "), "--source is empty"),
        (("--source", "a " * 5000), "the source is too long"),
    ):
        outcome = chainrule("align", run, *options)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err
