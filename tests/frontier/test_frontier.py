"""`chainrule frontier`, from runs to a table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from chainrule.frontier.generation import GENERATED_TOKENS, PROMPT_TOKENS, GenerationWorkload
from chainrule.frontier.translation import TranslationWorkload
from chainrule.models.hybrid_regressive import ordinal
from chainrule.tasks import load
from chainrule.tasks.text import TextRun
from chainrule.tasks.translation import TranslationRun
from tests.cli.test_bad_input import refused
from tests.conftest import Command

SOURCES = ["a b", "c d a", "b b", "d", "a c c b", "d a"]
QUICK = ("--seconds", 1e-6, "--threads", 1)


@pytest.fixture
def files(tmp_path: Path) -> tuple[object, ...]:
    """The options with files of sentences and references."""
    (tmp_path / "test.en").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "test.de").write_text("x y\nz\nx x y\ny\nz z\nx\n")
    return "--source", tmp_path / "test.en", "--references", tmp_path / "test.de"


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text(" ".join("xyz"[index * index // 7 % 3] for index in range(300)) + "\n")
    return file


def method_names(outcome: str) -> list[str]:
    return [row["name"] for row in json.loads(outcome)["rows"]]


def test_the_decoding_methods_follow_from_the_model(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], tmp_path: Path
) -> None:
    pytest.importorskip("sacrebleu")
    out = tmp_path / "out"
    names = ("base", "hybrid", "masked", "ctc", "third")
    options = ("frontier", *(runs[name] for name in names), *files, "--out", out, *QUICK, "--batches", "1,4")
    outcome = chainrule(*options, "--passes", "1,2,4", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert method_names(outcome.out) == [
        "base greedy", "base beam 5",
        "hybrid greedy", "hybrid speculative", "hybrid beam 5",
        "hybrid γ 0, greedy", "hybrid γ 0, beam 5", "hybrid γ 1, one pass",
        "masked 1 pass", "masked 2 passes", "masked 4 passes",
        "ctc 1 pass", "ctc 1 pass, beam 5",
        "third every 3rd token",
    ]  # fmt: skip
    assert found["failures"] == []
    for row in found["rows"]:
        assert set(row["quality"]) == {"BLEU", "chrF"}
        assert [speed["batch"] for speed in row["speeds"]] == [1, 4]
        assert all(speed["rounds"] == 5 and speed["items_per_second"] > 0 for speed in row["speeds"])
    [drafted] = [row for row in found["rows"] if row["same_output_as"] is not None]
    [greedy] = [row for row in found["rows"] if row["name"] == "hybrid greedy"]
    assert drafted["quality"] == greedy["quality"]
    assert all(speed["compared"] > 0 and speed["different"] == 0 for speed in drafted["speeds"])
    assert found["rows"][0]["speeds"][0]["speedup"] == 1.0
    assert "tok:13a" in found["protocol"]["BLEU signature"]
    assert json.loads((out / "results.json").read_text())["rows"] == found["rows"]

    table = chainrule(*options, "--passes", "1,2,4").out  # measures nothing again
    assert "batch size 4, 1 thread; ×: speed-up over base greedy" in table
    assert "nrefs:1" in table
    assert "yes," in table
    assert str(out / "report.html") in table
    assert "masked 2 passes" in (out / "report.html").read_text()


def test_quality_equals_that_of_score(runs: dict[str, Path], files: tuple[object, ...]) -> None:
    pytest.importorskip("sacrebleu")
    run = load(runs["base"], TranslationRun, device="cpu")
    references = ["x y", "z", "x x y", "y", "z z", "x"]
    workload = TranslationWorkload([run], SOURCES, references)
    for method in workload.methods:
        wanted = run.score_translations(SOURCES, references, method.search)
        assert method.measure_quality().metrics == pytest.approx({"BLEU": wanted.bleu, "chrF": wanted.chrf})


def test_a_limit_takes_the_first_sentences(runs: dict[str, Path]) -> None:
    workload = TranslationWorkload(
        [load(runs["base"], TranslationRun, device="cpu")], SOURCES, SOURCES, limit=2, beam=1
    )
    assert (workload.size, [method.label for method in workload.methods]) == (2, ["greedy"])
    assert workload.sentences.sources == SOURCES[:2]


def test_a_hybrid_is_measured_at_the_values_of_gamma_that_are_given(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], tmp_path: Path
) -> None:
    options = ("frontier", runs["hybrid"], *files, "--beam", 1, *QUICK, "--batches", 2, "--out", tmp_path / "out")
    found = json.loads(chainrule(*options, "--gammas", "0.2,1", "--json").out)
    methods = [row["method"] for row in found["rows"]]
    assert methods == ["greedy", "speculative", "γ 0.2, greedy", "γ 1, one pass"]
    refused(chainrule(*options, "--gammas", "2"), "--gammas takes numbers from 0 to 1")


def test_a_smaller_run_can_be_the_draft(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], tmp_path: Path
) -> None:
    options = ("frontier", runs["base"], *files, "--draft", runs["other"], "--beam", 1, *QUICK, "--batches", 2)
    found = json.loads(chainrule(*options, "--out", tmp_path / "out", "--json").out)
    assert [row["method"] for row in found["rows"]] == ["greedy", "draft other"]
    assert found["rows"][1]["speeds"][0]["compared"] > 0
    assert found["rows"][1]["speeds"][0]["different"] == 0


def test_text_generated_with_a_draft_is_the_same_as_without(
    chainrule: Command, runs: dict[str, Path], held_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.frontier.generation.GENERATED_TOKENS", 12)
    options = ("frontier", runs["gpt"], "--data", held_out, "--draft", runs["small"], "--limit", 3, "--batches", "1,3")
    outcome = chainrule(*options, *QUICK, "--out", tmp_path / "out", "--json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    drafts = ("", ", draft self", ", draft ngram", ", draft small")
    assert [row["method"] for row in found["rows"]] == [
        choice + draft for choice in ("greedy", "sampled") for draft in drafts
    ]
    score = load(runs["gpt"], TextRun, device="cpu").score(data=str(held_out))
    for row in found["rows"]:
        assert row["quality"] == {"bits/byte": pytest.approx(score.bits_per_byte)}
    failed = {failure["name"] for failure in found["failures"]}  # the training data for counting n-grams is missing
    assert failed == {"gpt greedy, draft ngram", "gpt sampled, draft ngram"}
    assert all("training data" in failure["reason"] for failure in found["failures"])
    checked = [speed for row in found["rows"] if row["same_output_as"] is not None for speed in row["speeds"]]
    assert len(checked) == 2 * 2 * 2
    assert all(speed["different"] == 0 for speed in checked)
    assert {speed["compared"] for speed in checked} == {5 * 12, 5 * 3 * 12}
    table = chainrule(*options, *QUICK, "--out", tmp_path / "out").out
    assert "training data" in table
    assert "gpt sampled" in table  # a longer name may wrap


def test_prompts_are_evenly_spaced_and_each_text_has_its_own_seed(runs: dict[str, Path], held_out: Path) -> None:
    workload = GenerationWorkload([load(runs["gpt"], TextRun, device="cpu")], str(held_out), limit=4)
    tokens = workload.prompt_sets[0].corpus.tokens.tolist()
    assert workload.prompt_sets[0].prompts[0] == tokens[:PROMPT_TOKENS]
    assert workload.prompt_sets[0].prompts[2] == tokens[(len(tokens) - PROMPT_TOKENS) // 2 :][:PROMPT_TOKENS]
    workload.prompt_sets[0].prompts[:] = [tokens[:PROMPT_TOKENS]] * 4  # so that only the seeds differ
    [sampled] = [method for method in workload.methods if method.label == "sampled"]
    together, separate = sampled.decode([0, 1, 2], 3), [sampled.decode([item], 1)[0] for item in range(3)]
    assert together == separate
    assert {output.tokens for output in together} == {GENERATED_TOKENS}
    assert len({output.content for output in together}) == 3


def test_without_sacrebleu_speeds_are_still_measured(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    options = ("frontier", runs["base"], *files, "--batches", 1, *QUICK, "--out", tmp_path / "out")
    outcome = chainrule(*options)
    assert outcome.code == 0, outcome.err
    [line] = [line for line in outcome.out.splitlines() if "failed" in line]
    assert line.startswith("base greedy (quality), base beam 5 (quality) failed")
    assert "chainrule[translation]" in line
    assert "sentences/s" in outcome.out
    assert "Failed" in (tmp_path / "out" / "report.html").read_text()


def test_ctrl_c_stops_and_the_same_command_continues(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("frontier", runs["base"], *files, "--batches", "1", *QUICK, "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("chainrule.frontier.measure.run_round", interrupted)
        outcome = chainrule(*options)
    assert (outcome.code, outcome.out) == (0, "")
    assert "the same command continues" in outcome.err
    assert not json.loads((tmp_path / "out" / "results.json").read_text())["complete"]
    assert chainrule(*options).code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--passes", "1,x"], ["--passes", "1,x"]),
        (["--passes", "0"], ["--passes", "positive numbers"]),
        (["--batches", ""], ["--batches"]),
        (["--seconds", "0"], ["--seconds must be positive"]),
        (["--data", "builtin:prose"], ["--data is for text runs"]),
        (["--draft", "nowhere"], ["no run at", "nowhere"]),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(
    chainrule: Command,
    runs: dict[str, Path],
    files: tuple[object, ...],
    tmp_path: Path,
    options: list[str],
    message: list[str],
) -> None:
    refused(chainrule("frontier", runs["base"], *files, "--out", tmp_path / "out", *options), *message)
    assert not (tmp_path / "out").exists()


def test_files_and_runs_must_match(
    chainrule: Command, runs: dict[str, Path], files: tuple[object, ...], held_out: Path, tmp_path: Path
) -> None:
    source, short = files[1], tmp_path / "short.de"
    short.write_text("x\n")
    out = ("--out", tmp_path / "out")
    refused(chainrule("frontier", runs["base"], "--source", source, *out), "--references")
    refused(chainrule("frontier", runs["base"], *out), "--source", "--data")
    refused(
        chainrule("frontier", runs["base"], "--source", source, "--references", short, *out),
        "6 sources and 1 references",
    )
    refused(chainrule("frontier", runs["base"], *files[:2], "--references", tmp_path / "none", *out), "none")
    refused(chainrule("frontier", runs["base"], runs["gpt"], *files, *out), "which generates text", "that translates")
    refused(chainrule("frontier", runs["base"], "--data", held_out, *out), "which translates", "that generates text")
    refused(chainrule("frontier", runs["gpt"], "--data", short, *out), "2 tokens", "give a longer text")
    assert not (tmp_path / "out").exists()


def test_runs_with_the_same_folder_name_are_named_by_their_paths(runs: dict[str, Path], tmp_path: Path) -> None:
    twin = tmp_path / "base"
    twin.symlink_to(runs["base"])
    workload = TranslationWorkload(
        [load(path, TranslationRun, device="cpu") for path in (runs["base"], twin)], ["a"], ["x"]
    )
    assert len({method.name for method in workload.methods}) == len(workload.methods) == 4


@pytest.mark.parametrize(("number", "text"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (21, "21st")])
def test_ordinal_numbers(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_help_has_options_and_examples(chainrule: Command) -> None:
    outcome = chainrule("frontier", "--help")
    assert outcome.code == 0
    for text in ("--references", "--passes", "--seconds", "the same command continues", "chainrule frontier runs/gpt"):
        assert text in " ".join(outcome.out.split())
