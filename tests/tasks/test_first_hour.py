"""What a new user meets first: columns by number, progress, divergence, readable runs."""

from __future__ import annotations

import io
import os
import stat
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.test_bad_input import refused
from tests.conftest import Command

import chainrule as package
from chainrule.errors import DataError, DecodingError, TrainingError
from chainrule.training.progress import LogLines

WORDS = ("der", "die", "das", "Haus", "Berg", "Tal")
TINY = {"model": {"width": 8, "word_width": 4, "char_width": 4, "char_filters": 4}, "train": {"batch_tokens": 64}}
SMALL = {"model": {"layers": 1, "width": 16, "heads": 2, "context": 16}, "train": {"batch_tokens": 256}}


@pytest.fixture
def columns(tmp_path: Path) -> Path:
    """Four columns as in CoNLL-2003: word, part of speech, chunk, entity."""
    file = tmp_path / "columns.txt"
    lines = [
        f"{word}\tNN\t{'B-NP' if index % 2 else 'O'}\t{'B-LOC' if word in ('Berg', 'Tal') else 'O'}"
        for index, word in enumerate(WORDS * 6)
    ]
    file.write_text("\n\n".join("\n".join(lines[at : at + 3]) for at in range(0, len(lines), 3)) + "\n")
    return file


@pytest.mark.parametrize("column", [4, "4"])
def test_a_column_may_be_given_by_its_number(columns: Path, tmp_path: Path, column: object) -> None:
    settings = {**TINY, "data": {"tag_column": column}}
    run = package.train("tagger", data=str(columns), steps=1, out=tmp_path / "run", settings=settings)
    assert run.labels == ("B-LOC", "O")


def test_a_column_number_on_the_command_line_is_a_number(chainrule: Command, tmp_path: Path) -> None:
    table = tmp_path / "labels.tsv"
    table.write_text("".join(f"{index}\t{'x' if index % 2 else 'y'}\ta b c\n" for index in range(40)))
    chosen = ["--set", "data.source_field=3", "--set", "data.target_field=2", "--set", "model.embedding=4"]
    outcome = chainrule("train", "classifier", "--data", table, "--steps", 1, "--out", tmp_path / "run", *chosen)
    assert outcome.code == 0, outcome.err
    assert package.load(tmp_path / "run").labels == ("x", "y")


def test_a_tagger_with_a_single_tag_is_refused_and_the_column_setting_named(columns: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"have the tag 'NN'.*data.tag_column"):
        package.train("tagger", data=str(columns), steps=1, out=tmp_path / "run", settings={"data": {"tag_column": 2}})
    assert not (tmp_path / "run").exists()


def test_bio_tags_are_scored_by_entities(columns: Path, tmp_path: Path) -> None:
    settings = {**TINY, "data": {"tag_column": 4}}
    run = package.train("tagger", data=str(columns), steps=2, out=tmp_path / "run", settings=settings)
    score = run.score(str(columns))
    assert score.entities == 12
    assert 0 <= score.entity_f1 <= 1
    assert "entity F1" in (tmp_path / "run" / "card.md").read_text()


def test_an_absurd_learning_rate_stops_with_one_line_and_leaves_no_model(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    rates = ["--set", "train.learning_rate=1e30", "--set", "train.muon_learning_rate=1e30", "--set", "train.warmup=0"]
    sizes = ["--set", "model.layers=1", "--set", "model.width=16", "--set", "model.context=16"]
    outcome = chainrule("train", "gpt", "--data", text_file, "--steps", 4, "--out", tmp_path / "run", *sizes, *rates)
    assert outcome.code == 2
    last = outcome.err.strip().splitlines()[-1]
    assert "training has diverged at step" in last
    assert "lower train.learning_rate" in last
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_loss_far_above_that_of_the_uniform_distribution_is_divergence(text_file: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "train": {"batch_tokens": 256, "learning_rate": 10.0, "muon_learning_rate": 10.0, "warmup": 0}}
    with pytest.raises(TrainingError, match=r"diverged at step \d+: the validation loss is [\d.e+]+ nats/token"):
        package.train("gpt", data=str(text_file), steps=8, out=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run" / "card.md").exists()


def test_a_validation_loss_that_is_not_finite_is_divergence(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.tasks.text.TextData.validate", lambda *_: float("nan"))
    with pytest.raises(TrainingError, match="the validation loss is not finite"):
        package.train("gpt", data=str(text_file), steps=2, out=tmp_path / "run", settings=SMALL)


def test_a_model_that_is_worse_than_a_unigram_is_called_so(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package.train("gpt", data=str(text_file), steps=2, out=tmp_path / "fine", settings=SMALL)
    assert "worse than a unigram" not in capsys.readouterr().err
    monkeypatch.setattr("chainrule.tasks.text.TextData.validate", lambda *_: 5.0)
    package.train("gpt", data=str(text_file), steps=2, out=tmp_path / "poor", settings=SMALL)
    assert "the model is worse than a unigram model: 5.000 against" in capsys.readouterr().err


def test_progress_off_a_terminal_is_a_line_at_the_start_every_half_minute_and_at_the_end() -> None:
    clock = iter([0.0, 0.0, 10.0, 31.0, 31.0, 31.0, 40.0, 61.0, 61.0, 61.0])
    stream = io.StringIO()
    lines = LogLines(Console(file=stream, width=200), clock=lambda: next(clock))
    lines.begin("training")
    lines.update(0.2, {"loss": 3.0})
    lines.update(0.5, {"loss": 2.0})
    lines.update(0.6, {"loss": 1.5})
    lines.update(1.0, {"loss": 1.0})
    found = stream.getvalue().splitlines()
    assert found == ["training", "training: 50%, 31 s · loss 2.000", "training: 100%, 61 s · loss 1.000"]


def test_short_stages_off_a_terminal_are_announced_once_and_not_closed() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = LogLines(Console(file=stream, width=200), clock=lambda: now[0])
    for _ in range(3):
        lines.preparing("tokenizing", 1, 1)
    lines.begin("scoring")
    now[0] = 2.0
    lines.update(1.0, {})
    lines.end()
    assert stream.getvalue().splitlines() == ["tokenizing", "scoring", "scoring: done, 2 s"]


def test_a_stage_that_reports_nothing_itself_still_has_its_lines_off_a_terminal() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = LogLines(Console(file=stream, width=200), clock=lambda: now[0], announce_after=1.0, watch=True)
    lines.begin("verifying")
    lines.update(None, {})
    assert stream.getvalue() == ""
    now[0] = 31.0
    for _ in range(50):
        if stream.getvalue().count("\n") == 2:
            break
        time.sleep(0.1)
    now[0] = 33.0
    lines.end()
    assert stream.getvalue().splitlines() == ["verifying", "verifying: 31 s", "verifying: done, 33 s"]


def test_a_stage_that_fails_has_no_last_line() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = LogLines(Console(file=stream, width=200), clock=lambda: now[0])
    lines.begin("scoring")
    now[0] = 5.0
    try:
        raise DataError("no text")
    except DataError:
        lines.end()
    assert stream.getvalue().splitlines() == ["scoring"]


def test_lines_are_counted_where_their_number_is_not_known() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = LogLines(Console(file=stream, width=200), clock=lambda: now[0])
    lines.begin("predicting")
    now[0] = 30.0
    lines.update(None, {"lines": 1234})
    assert stream.getvalue().splitlines() == ["predicting", "predicting: 30 s · lines 1,234"]


def test_no_blank_lines_are_printed_off_a_terminal(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    outcome = chainrule("train", "ngram", "--data", text_file, "--out", tmp_path / "run")
    lines = outcome.err.splitlines()
    assert lines
    assert all(line.strip() for line in lines)
    assert any(line.startswith("counting") for line in lines)


def test_python_shows_progress_unless_it_is_silenced(
    text_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package.train("ngram", data=str(text_file), out=tmp_path / "loud")
    assert "counting" in capsys.readouterr().err
    package.train("ngram", data=str(text_file), out=tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""


def test_scoring_and_mixing_show_progress_unless_they_are_silenced(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chainrule.training.progress.ANNOUNCED_AFTER", 0.0)
    runs = [
        package.train(
            "ngram", data=str(text_file), out=tmp_path / name, progress=False, settings={"model": {"order": n}}
        )
        for name, n in (("one", 1), ("two", 2))
    ]
    run, seen = runs[0], list[float]()
    run.score(data=str(text_file), progress=False)
    run.score(data=str(text_file), progress=seen.append)
    package.mix([one.path for one in runs], out=tmp_path / "quiet", progress=False)
    assert capsys.readouterr().err == ""
    assert seen[-1] == 1.0
    run.score(data=str(text_file))
    assert capsys.readouterr().err == "scoring\n"
    package.mix([one.path for one in runs], out=tmp_path / "loud")
    assert capsys.readouterr().err != ""


def test_a_run_prints_as_what_it_is_and_shows_tables_in_a_notebook(text_file: Path, tmp_path: Path) -> None:
    run = package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    assert repr(run).startswith(f"<TextRun {tmp_path / 'run'}: ngram, ")
    assert repr(run).endswith("bits/byte>")
    html = run._repr_html_()
    assert html.count("<table") == 2
    assert "bits/byte" in html
    assert "<svg" not in html  # a count model has no learning curve


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_of_a_run_follow_the_umask(text_file: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "run").iterdir() if file.is_file()}
    assert modes == {0o640}


def test_compare_is_a_function_of_the_package() -> None:
    from chainrule.comparison.compare import compare

    assert package.compare is compare


def test_a_missing_run_is_one_line(chainrule: Command, tmp_path: Path) -> None:
    refused(chainrule("info", tmp_path / "nowhere"), "no run at")


def test_an_output_file_in_a_folder_that_does_not_exist_is_refused_and_nothing_is_created(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    for command in (
        ("draw", tmp_path / "run", "--out", tmp_path / "missing" / "grid.png"),
        ("embed", tmp_path / "run", "--out", tmp_path / "missing" / "vectors.npz"),
        ("align", tmp_path / "run", "--source", "a", "--out", tmp_path / "missing" / "map.png"),
    ):
        refused(chainrule(*command), "no folder", "create it")
    assert not (tmp_path / "missing").exists()


def test_export_does_not_write_into_a_folder_that_is_not_empty(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.arpa").write_text("precious")
    refused(chainrule("export", tmp_path / "run", "--to", "arpa", "--out", out), "is not empty", "--overwrite")
    assert (out / "model.arpa").read_text() == "precious"
    assert chainrule("export", tmp_path / "run", "--to", "arpa", "--out", out, "--overwrite").code == 0
    assert (out / "model.arpa").read_text() != "precious"


def test_a_device_that_is_missing_is_not_offered(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    outcome = chainrule("train", "ngram", "--data", text_file, "--device", "cuda", "--out", tmp_path / "run")
    assert outcome.code == 2
    assert (
        outcome.err == "error device 'cuda' is not available on this machine; choose auto or cpu\n"
    )  # no data is read


def test_an_unknown_family_is_answered_with_families_that_can_be_trained(chainrule: Command, tmp_path: Path) -> None:
    outcome = chainrule("train", "zzz", "--data", "builtin:prose", "--out", tmp_path / "run")
    assert "unknown family 'zzz'; choose from: attentive_conv" in outcome.err
    assert "mixture" not in outcome.err


def test_word_perplexity_is_left_out_where_there_are_no_words(tmp_path: Path) -> None:
    chinese = tmp_path / "chinese.txt"
    chinese.write_text("春眠不觉晓处处闻啼鸟夜来风雨声花落知多少\n" * 60, encoding="utf-8")
    run = package.train("ngram", data=str(chinese), out=tmp_path / "run", progress=False)
    assert run.info()["validation"]["word_perplexity"] is None
    assert "word perplexity" not in (tmp_path / "run" / "card.md").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "ngram", "--data", "TEXT", "--out", "NEW", "--seed", str(10**30)],
        ["train", "ngram", "--data", "TEXT", "--out", "NEW", "--seed", "-1"],
        ["train", "ngram", "--data", "TEXT", "--out", "NEW", "--threads", "100000"],
        ["compare", "--data", "TEXT", "--out", "NEW", "--threads", "100000"],
        ["compare", "--data", "TEXT", "--out", "NEW", "--seed", str(10**30)],
        ["generate", "RUN", "--prompt", "the", "--seed", str(10**30)],
        ["generate", "RUN", "--prompt", "the", "--threads", "100000"],
        ["verify", "RUN", "--seed", "-1"],
    ],
)
def test_absurd_seeds_and_numbers_of_threads_are_refused(
    chainrule: Command, text_file: Path, tmp_path: Path, arguments: list[str]
) -> None:
    package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    places = {"TEXT": text_file, "NEW": tmp_path / "new", "RUN": tmp_path / "run"}
    outcome = chainrule(*(places.get(word, word) for word in arguments))
    refused(outcome, "less than or equal to" if arguments[-1] != "-1" else "greater than or equal to 0")
    assert outcome.out == ""
    assert not (tmp_path / "new").exists()


def test_python_refuses_a_seed_of_more_than_64_bits(text_file: Path, tmp_path: Path) -> None:
    run = package.train("ngram", data=str(text_file), out=tmp_path / "run", progress=False)
    with pytest.raises(DecodingError, match="it must be 0 to"):
        run.generate("the", seed=10**30)


def test_compare_refuses_a_folder_of_something_else_before_it_reads_the_data(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    outcome = chainrule("compare", "--data", text_file, "--out", tmp_path, "--minutes", 1)
    refused(outcome, "is not a comparison; choose a new or empty folder")


@pytest.mark.parametrize("unit", ["stream", "documents"])
@pytest.mark.parametrize(
    ("line", "has_words"),
    [
        ("明月几时有把酒问青天。\n", False),
        ("明 月 几时 有 ， 把 酒 问 青天 。\n", True),
        ("ผมรักแมวและหมา\n", False),
        ("मैं बिल्लियों से प्यार करता हूँ\n", True),
        ("naïve café au lait\n", True),
    ],
)
def test_word_perplexity_is_left_out_where_white_space_does_not_separate_words(
    line: str, has_words: bool, unit: str, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(line * 60, encoding="utf-8")
    options = {"progress": False, "overrides": [f"data.unit={unit}", "model.order=3"]}
    run = package.train("ngram", data=str(tmp_path / "text.txt"), out=tmp_path / "run", **options)
    assert (run.score(data=str(tmp_path / "text.txt")).word_perplexity is not None) == has_words


def test_the_title_of_a_score_is_one_line_and_may_hold_brackets(chainrule: Command, tmp_path: Path) -> None:
    data = tmp_path / "a rather long name of [a file] with labels.tsv"
    data.write_text("".join(f"text {index}\t{'x' if index % 2 else 'y'}\n" for index in range(40)))
    outcome = chainrule("train", "classifier", "--data", data, "--steps", 1, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert [line for line in outcome.out.splitlines() if line.startswith("validation:") and line.endswith(str(data))]
