"""`chainrule frontier`, from runs to a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from chainrule.frontier.translating import Translating, ordinal
from chainrule.frontier.writing import LENGTH, PROMPT, Writing
from chainrule.runs import TextRun, TranslationRun, load
from tests.cli.test_bad_input import refused
from tests.conftest import Command

SOURCES = ["a b", "c d a", "b b", "d", "a c c b", "d a"]
QUICK = ("--seconds", 1e-6, "--threads", 1)


@pytest.fixture
def files(tmp_path: Path) -> tuple[object, ...]:
    """The options that name sentences and their references."""
    (tmp_path / "test.en").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "test.de").write_text("x y\nz\nx x y\ny\nz z\nx\n")
    return "--source", tmp_path / "test.en", "--references", tmp_path / "test.de"


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(" ".join("xyz"[index * index // 7 % 3] for index in range(300)) + "\n")
    return file


def ways(outcome: str) -> list[str]:
    return [row["name"] for row in json.loads(outcome)["rows"]]


def test_every_run_has_its_own_ways_to_translate(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], tmp_path: Path
) -> None:
    pytest.importorskip("sacrebleu")
    out = tmp_path / "out"
    names = ("base", "hybrid", "masked", "ctc", "third")
    words = ("frontier", *(runs[name] for name in names), *files, "--out", out, *QUICK, "--batches", "1,4")
    outcome = chainrule(*words, "--passes", "1,2,4", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert ways(outcome.out) == [
        "base greedy", "base beam 5",
        "hybrid greedy", "hybrid speculative", "hybrid beam 5",
        "masked 1 pass", "masked 2 passes", "masked 4 passes",
        "ctc 1 pass", "ctc 1 pass, beam 5",
        "third every 3rd token",
    ]  # fmt: skip
    assert found["failures"] == []
    for row in found["rows"]:
        assert set(row["quality"]) == {"BLEU", "chrF"}
        assert [speed["batch"] for speed in row["speeds"]] == [1, 4]
        assert all(speed["turns"] == 5 and speed["items_per_second"] > 0 for speed in row["speeds"])
    [drafted] = [row for row in found["rows"] if row["same_as"] is not None]
    [greedy] = [row for row in found["rows"] if row["name"] == "hybrid greedy"]
    assert drafted["quality"] == greedy["quality"]
    assert all(speed["compared"] > 0 and speed["different"] == 0 for speed in drafted["speeds"])
    assert found["rows"][0]["speeds"][0]["times"] == 1.0
    assert "tok:13a" in found["protocol"]["BLEU signature"]
    assert json.loads((out / "results.json").read_text())["rows"] == found["rows"]

    table = chainrule(*words, "--passes", "1,2,4").out  # which measures nothing anew
    assert "batch 4, 1 thread; ×: times as fast as base greedy" in table
    assert "nrefs:1" in table
    assert "yes," in table
    assert str(out / "report.html") in table
    assert "masked 2 passes" in (out / "report.html").read_text()


def test_quality_is_that_of_score(runs: dict[str, Path], files: tuple[object, ...]) -> None:
    pytest.importorskip("sacrebleu")
    run = load(runs["base"], TranslationRun, device="cpu")
    references = ["x y", "z", "x x y", "y", "z z", "x"]
    task = Translating([run], SOURCES, references)
    for way in task.ways:
        wanted = run.score_translations(SOURCES, references, way.search)
        assert way.assess().figures == pytest.approx({"BLEU": wanted.bleu, "chrF": wanted.chrf})


def test_only_the_first_sentences_where_there_is_a_limit(runs: dict[str, Path]) -> None:
    task = Translating([load(runs["base"], TranslationRun, device="cpu")], SOURCES, SOURCES, limit=2, beam=1)
    assert (task.items, [way.label for way in task.ways]) == (2, ["greedy"])
    assert task.sentences.sources == SOURCES[:2]


def test_another_run_can_draft_for_all(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], tmp_path: Path
) -> None:
    words = ("frontier", runs["base"], *files, "--draft", runs["other"], "--beam", 1, *QUICK, "--batches", 2)
    found = json.loads(chainrule(*words, "--out", tmp_path / "out", "--json").out)
    assert [row["way"] for row in found["rows"]] == ["greedy", "draft other"]
    assert found["rows"][1]["speeds"][0]["compared"] > 0
    assert found["rows"][1]["speeds"][0]["different"] == 0


def test_text_is_written_plain_and_with_drafts_and_is_the_same(
    chainrule: Command, runs: dict[str, Path], held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.frontier.writing.LENGTH", 12)
    words = ("frontier", runs["gpt"], "--data", held_out, "--draft", runs["small"], "--limit", 3, "--batches", "1,3")
    outcome = chainrule(*words, *QUICK, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    drafts = ("", ", draft self", ", draft ngram", ", draft small")
    assert [row["way"] for row in found["rows"]] == [
        choice + draft for choice in ("greedy", "sampled") for draft in drafts
    ]
    score = load(runs["gpt"], TextRun, device="cpu").score(data=str(held_out))
    for row in found["rows"]:
        assert row["quality"] == {"bits/byte": pytest.approx(score.bits_per_byte)}
    failed = {failure["name"] for failure in found["failures"]}  # the training data is not there to be counted
    assert failed == {"gpt greedy, draft ngram", "gpt sampled, draft ngram"}
    assert all("training data" in failure["reason"] for failure in found["failures"])
    checked = [speed for row in found["rows"] if row["same_as"] is not None for speed in row["speeds"]]
    assert len(checked) == 2 * 2 * 2
    assert all(speed["different"] == 0 for speed in checked)
    assert {speed["compared"] for speed in checked} == {5 * 12, 5 * 3 * 12}
    table = chainrule(*words, *QUICK, "--out", tmp_path / "out").out
    assert "training data" in table
    assert "gpt sampled" in table  # a longer name may go on in the next line


def test_prompts_are_from_all_over_the_text_and_texts_have_their_own_seeds(
    runs: dict[str, Path], held_out: Path
) -> None:
    task = Writing([load(runs["gpt"], TextRun, device="cpu")], str(held_out), limit=4)
    tokens = task.texts[0].corpus.tokens.tolist()
    assert task.texts[0].prompts[0] == tokens[:PROMPT]
    assert task.texts[0].prompts[2] == tokens[(len(tokens) - PROMPT) // 2 :][:PROMPT]
    task.texts[0].prompts[:] = [tokens[:PROMPT]] * 4  # so that seeds alone make the difference
    [sampled] = [way for way in task.ways if way.label == "sampled"]
    together, alone = sampled.write([0, 1, 2], 3), [sampled.write([item], 1)[0] for item in range(3)]
    assert together == alone
    assert {output.tokens for output in together} == {LENGTH}
    assert len({output.content for output in together}) == 3


def test_without_sacrebleu_speeds_are_measured_all_the_same(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    words = ("frontier", runs["base"], *files, "--batches", 1, *QUICK, "--out", tmp_path / "out")
    outcome = chainrule(*words)
    assert outcome.code == 0, outcome.err
    [line] = [line for line in outcome.out.splitlines() if "failed" in line]
    assert line.startswith("base greedy (quality), base beam 5 (quality) failed")
    assert "chainrule[translation]" in line
    assert "sentences/s" in outcome.out
    assert "Could not be measured" in (tmp_path / "out" / "report.html").read_text()


def test_ctrl_c_stops_and_the_same_command_goes_on(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("frontier", runs["base"], *files, "--batches", "1", *QUICK, "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("chainrule.frontier.explore.take_turn", interrupted)
        outcome = chainrule(*words)
    assert (outcome.code, outcome.out) == (0, "")
    assert "the same command goes on" in outcome.err
    assert not json.loads((tmp_path / "out" / "results.json").read_text())["complete"]
    assert chainrule(*words).code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--passes", "1,x"], ["--passes", "1,x"]),
        (["--passes", "0"], ["--passes", "from 1 on"]),
        (["--batches", ""], ["--batches"]),
        (["--seconds", "0"], ["0 seconds"]),
        (["--data", "text.txt"], ["--data is for runs that write text"]),
        (["--draft", "nowhere"], ["there is no run", "nowhere"]),
    ],
)
def test_a_mistake_is_one_line(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    words: list[str],
    message: list[str],
) -> None:
    refused(chainrule("frontier", runs["base"], *files, "--out", tmp_path / "out", *words), *message)
    assert not (tmp_path / "out").exists()


def test_files_and_runs_must_fit_together(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], held_out: Path, tmp_path: Path
) -> None:
    source, short = files[1], tmp_path / "short.de"
    short.write_text("x\n")
    out = ("--out", tmp_path / "out")
    refused(chainrule("frontier", runs["base"], "--source", source, *out), "--references")
    refused(chainrule("frontier", runs["base"], *out), "--source", "--data")
    refused(
        chainrule("frontier", runs["base"], "--source", source, "--references", short, *out),
        "6 sources came with 1 references",
    )
    refused(chainrule("frontier", runs["base"], *files[:2], "--references", tmp_path / "none", *out), "none")
    refused(chainrule("frontier", runs["base"], runs["gpt"], *files, *out), "which writes text", "that translates")
    refused(chainrule("frontier", runs["base"], "--data", held_out, *out), "which translates", "that writes text")
    refused(chainrule("frontier", runs["gpt"], "--data", short, *out), "2 tokens", "give a longer text")
    assert not (tmp_path / "out").exists()


def test_runs_of_one_name_are_told_apart_by_their_paths(runs: dict[str, Path], tmp_path: Path) -> None:
    twin = tmp_path / "base"
    twin.symlink_to(runs["base"])
    task = Translating([load(path, TranslationRun, device="cpu") for path in (runs["base"], twin)], ["a"], ["x"])
    assert len({way.name for way in task.ways}) == len(task.ways) == 4


@pytest.mark.parametrize(("number", "text"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (21, "21st")])
def test_numbers_in_a_row(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_help_teaches(chainrule: Command) -> None:
    outcome = chainrule("frontier", "--help")
    assert outcome.code == 0
    for word in ("--references", "--passes", "--seconds", "the same command goes on", "chainrule frontier runs/gpt"):
        assert word in outcome.out
