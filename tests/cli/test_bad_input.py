"""Bad input: one line on stderr, a non-zero exit status, and nothing lost or half written."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from chainrule.errors import RunError
from chainrule.training import checkpoint
from chainrule.training.checkpoint import RunFolder
from tests.conftest import Command, Outcome

STAGES = ("counting", "tokenizer", "training data", "validation data", "test data", "cleaning", "training")


def refused(outcome: Outcome, *words: str) -> None:
    """One line without a traceback, after nothing but names of stages, contains the given words."""
    assert outcome.code not in (0, None)
    *progress, last = outcome.err.splitlines()
    assert last.startswith("error "), outcome.err
    assert set(progress) <= set(STAGES), outcome.err
    for word in words:
        assert word in last


@pytest.fixture
def run(chainrule: Command, text_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    sets = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=32", "train.batch_tokens=256"]
    flags = [word for setting in sets for word in ("--set", setting)]
    assert chainrule("train", "gpt", "--data", text_file, "--out", out, "--steps", 4, *flags).code == 0
    return out


def train(chainrule: Command, data: object, tmp_path: Path, *words: object, family: str = "gpt") -> Outcome:
    out = tmp_path / "new"
    outcome = chainrule("train", family, "--data", data, "--out", out, "--steps", 2, *words)
    assert not out.exists(), "a refused run leaves no folder behind"
    return outcome


def test_a_missing_file_is_refused(chainrule: Command, tmp_path: Path) -> None:
    refused(train(chainrule, tmp_path / "nothing.txt", tmp_path), "nothing.txt")


def test_an_empty_file_is_refused(chainrule: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    refused(train(chainrule, tmp_path / "empty.txt", tmp_path), "empty.txt")


def test_a_binary_file_is_refused(chainrule: Command, tmp_path: Path) -> None:
    (tmp_path / "photo.txt").write_bytes(bytes(range(256)) * 20)
    refused(train(chainrule, tmp_path / "photo.txt", tmp_path), "photo.txt")


def test_a_truncated_archive_is_refused(chainrule: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(b"some text " * 1000)[:-20])
    refused(train(chainrule, tmp_path / "text.txt.gz", tmp_path), "text.txt.gz")


def test_a_text_shorter_than_the_context_is_refused(chainrule: Command, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short for a context of 256")
    refused(train(chainrule, tmp_path / "short.txt", tmp_path), "27 tokens", "model.context")


def test_training_without_data_is_refused(chainrule: Command, tmp_path: Path) -> None:
    refused(chainrule("train", "gpt", "--out", tmp_path / "new"), "--data")


def test_an_unknown_family_is_refused_with_the_nearest_name(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    refused(train(chainrule, text_file, tmp_path, family="ngramm"), "ngramm", "'ngram'")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.widht=64", ["model.widht", "'width'"]),
        ("train.batch_token=64", ["train.batch_token", "'batch_tokens'"]),
        ("modle.width=64", ["modle", "'model'"]),
        ("model.width=wide", ["model.width", "wide"]),
        ("model.layers=0", ["model.layers", "0"]),
        ("model.width=131", ["not divisible by heads 2"]),
        ("train.warmup=1.5", ["train.warmup", "1.5"]),
        ("train.learning_rate=-1", ["train.learning_rate", "-1"]),
        ("nonsense", ["KEY=VALUE"]),
    ],
)
def test_a_wrong_setting_is_refused(
    chainrule: Command, text_file: Path, tmp_path: Path, setting: str, words: list[str]
) -> None:
    refused(train(chainrule, text_file, tmp_path, "--set", setting), *words)


def test_an_unknown_tokenizer_is_refused(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    refused(train(chainrule, text_file, tmp_path, "--tokenizer", "char"), "'chars'")


def test_two_budgets_are_refused(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    refused(train(chainrule, text_file, tmp_path, "--minutes", 1), "one budget")


def test_a_missing_device_is_refused(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    refused(train(chainrule, text_file, tmp_path, "--device", "tpu9"), "tpu9")


@pytest.mark.parametrize("verb", [["score", "--text", "x"], ["generate"], ["verify"], ["info"]])
def test_a_missing_run_is_refused(chainrule: Command, tmp_path: Path, verb: list[str]) -> None:
    refused(chainrule(verb[0], tmp_path / "nowhere", *verb[1:]), "nowhere")


def test_a_folder_that_is_no_run_is_refused(chainrule: Command, tmp_path: Path) -> None:
    refused(chainrule("info", tmp_path), "config.toml")


def test_a_run_without_weights_is_refused(chainrule: Command, run: Path) -> None:
    (run / "model.safetensors").unlink()
    refused(chainrule("info", run), "--resume")


def test_truncated_weights_are_refused(chainrule: Command, run: Path) -> None:
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(chainrule("score", run, "--text", "x"), "truncated or damaged")


def test_a_damaged_config_is_refused(chainrule: Command, run: Path) -> None:
    (run / "config.toml").write_text("family = ")
    refused(chainrule("info", run), "damaged")


def test_a_damaged_tokenizer_is_refused(chainrule: Command, run: Path) -> None:
    (run / "tokenizer.json").write_text('{"format": 1')
    refused(chainrule("info", run), "damaged")


def test_weights_of_another_shape_are_refused(chainrule: Command, run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace("width = 16", "width = 32"))
    RunFolder(run).checksums.update()
    refused(chainrule("info", run), "do not match")


def test_a_run_from_a_newer_version_is_refused(chainrule: Command, run: Path) -> None:
    config = run / "config.toml"
    config.write_text(config.read_text().replace("format = 1", "format = 99"))
    refused(chainrule("info", run), "99", "upgrade chainrule")


def test_an_unseen_character_in_the_prompt_is_named_unless_allowed(chainrule: Command, run: Path) -> None:
    refused(chainrule("generate", run, "--prompt", "the 漢字"), "漢字", "--allow-unknown")
    outcome = chainrule("generate", run, "--prompt", "the 漢字", "--allow-unknown", "--length", 5, "--json")
    assert outcome.code == 0, outcome.err
    [text] = json.loads(outcome.out)
    assert (len(text["text"]), text["finished"]) == (5, "length")


def test_an_unseen_character_can_be_scored_and_is_counted(chainrule: Command, run: Path) -> None:
    assert "unknown tokens" in chainrule("score", run, "--text", "the 漢字").out


def test_scoring_without_text_is_refused(chainrule: Command, run: Path) -> None:
    refused(chainrule("score", run), "either a text or data")
    refused(chainrule("score", run, "--text", ""), "empty")


def test_decoding_options_that_exclude_each_other_are_refused(chainrule: Command, run: Path) -> None:
    refused(chainrule("generate", run, "--greedy", "--top-k", 3), "--top-k")
    refused(chainrule("generate", run, "--beam", 2, "--temperature", 0.5), "temperature")
    refused(chainrule("generate", run, "--temperature", 0), "temperature")


def test_unsupported_exports_are_refused(chainrule: Command, run: Path, tmp_path: Path) -> None:
    refused(chainrule("export", run, "--to", "arpa", "--out", tmp_path / "a"), "ngram")
    refused(chainrule("export", run, "--to", "hf", "--out", tmp_path / "b"), "layout")


def test_a_full_disk_keeps_the_last_checkpoint(
    chainrule: Command, run: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while a resumed run saves its next state: the old state and weights stay whole."""
    before = {path: path.read_bytes() for path in run.rglob("*.safetensors")}
    real = checkpoint.save_tensors

    def full(tensors: object, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    sets = ["model.layers=1", "model.width=16", "model.heads=2", "model.context=32", "train.batch_tokens=256"]
    flags = [word for setting in sets for word in ("--set", setting)]
    again = ("train", "gpt", "--data", text_file, "--out", run, "--steps", 9, "--resume", *flags)
    refused(chainrule(*again), "disk is full", "--resume")
    assert {path: path.read_bytes() for path in run.rglob("*.safetensors")} == before
    monkeypatch.setattr(checkpoint, "save_tensors", real)
    assert chainrule(*again).code == 0
    assert json.loads(chainrule("info", run, "--json").out)["steps"] == 9


def test_dev_full_is_reported_as_a_full_disk(chainrule: Command, run: Path, tmp_path: Path) -> None:
    """/dev/full refuses every write as a full disk would."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    folder = RunFolder(run)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match="disk is full"):
        folder.append("metrics.jsonl", {"step": 1})
    shutil.rmtree(tmp_path / "run")
