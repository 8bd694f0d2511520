"""`chainrule mix`: the combined run works with every command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import chainrule as package
from chainrule.training.checkpoint import RunFolder
from tests.cli.test_bad_input import refused
from tests.cli.test_commands import small_gpt
from tests.conftest import Command


@pytest.fixture
def runs(chainrule: Command, text_file: Path, tmp_path: Path) -> tuple[Path, Path]:
    ngram = tmp_path / "ngram"
    assert chainrule("train", "ngram", "--data", text_file, "--set", "model.order=3", "--out", ngram).code == 0
    return ngram, small_gpt(chainrule, text_file, tmp_path / "gpt")


@pytest.mark.parametrize("kind", ["mixture", "ensemble"])
def test_a_mixed_run_can_be_scored_decoded_and_verified(
    chainrule: Command, runs: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    out = tmp_path / "both"
    outcome = chainrule("mix", *runs, "--out", out, "--kind", kind, "--json")
    assert outcome.code == 0, outcome.err
    about = json.loads(outcome.out)
    parts = [json.loads(chainrule("info", run, "--json").out) for run in runs]
    assert about["family"] == kind
    assert about["parameters"] > sum(part["parameters"] for part in parts)
    assert about["validation"]["nats_per_token"] <= min(part["validation"]["nats_per_token"] for part in parts) + 1e-4
    assert about["gate"]["after"] == pytest.approx(about["validation"]["nats_per_token"], abs=1e-4)
    assert about["gate"]["runs"] == [str(run) for run in runs]

    for run in runs:  # the new run stands alone
        shutil.rmtree(run)
    assert json.loads(chainrule("info", out, "--json").out)["validation"] == about["validation"]
    score = json.loads(chainrule("score", out, "--text", "the cat sat on the mat", "--json").out)
    assert score["protocol"]["method"] == "carried"
    assert chainrule("generate", out, "--prompt", "the ", "--length", 60).code == 0
    assert chainrule("verify", out).code == 0
    assert "in-sample" in (out / "card.md").read_text()


def test_a_mixed_run_can_be_mixed_again(chainrule: Command, runs: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert chainrule("mix", *runs, "--out", first, "--gate", "learned").code == 0
    outcome = chainrule("mix", first, runs[0], "--out", second, "--kind", "ensemble", "--gate", "learned", "--json")
    assert outcome.code == 0, outcome.err
    nats = [json.loads(chainrule("info", run, "--json").out)["validation"]["nats_per_token"] for run in (first, second)]
    assert nats[1] <= nats[0] + 1e-4
    assert "after fitting" in chainrule("mix", first, runs[0], "--out", tmp_path / "third").out


def test_fixed_weights_are_not_fitted(chainrule: Command, runs: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("--gate", "fixed", "--weights")
    assert chainrule("mix", *runs, "--out", tmp_path / "all", *words, "1,0").code == 0
    alone, mixed = (package.load(run).score("the cat sat").nats_per_token for run in (runs[0], tmp_path / "all"))
    assert mixed == pytest.approx(alone, abs=1e-5)
    refused(chainrule("mix", *runs, "--out", tmp_path / "bad", *words, "1;2"), "--weights", "1;2")
    refused(chainrule("mix", *runs, "--out", tmp_path / "bad", *words, "1,2,3"), "3 weights for 2 parts")


def test_test_data_is_scored_but_never_fitted_to(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.txt"
    test.write_text("the dog sat on the mat and the cat sat on the log\n" * 20)
    runs = []
    for order in (2, 4):
        runs.append(tmp_path / f"ngram-{order}")
        words = ("--set", f"model.order={order}", "--set", f"data.test={test}", "--out", runs[-1])
        assert chainrule("train", "ngram", "--data", text_file, *words).code == 0
    refused(chainrule("mix", *runs, "--out", tmp_path / "both", "--valid", test), str(test), "test data")
    about = json.loads(chainrule("mix", *runs, "--out", tmp_path / "both", "--json").out)
    assert about["test"]["data"] == str(test)
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text()[:2000])
    given = json.loads(chainrule("mix", *runs, "--out", tmp_path / "given", "--valid", other, "--json").out)
    assert given["validation"]["data"] == str(other)
    assert given["test"]["data"] == str(test)


def test_incompatible_runs_are_refused(
    chainrule: Command, runs: tuple[Path, Path], text_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "both"
    by_bytes, elsewhere = tmp_path / "bytes", tmp_path / "elsewhere"
    assert chainrule("train", "ngram", "--data", text_file, "--tokenizer", "bytes", "--out", by_bytes).code == 0
    assert chainrule("train", "ngram", "--data", text_file, "--valid", text_file, "--out", elsewhere).code == 0
    refused(chainrule("mix", runs[0], by_bytes, "--out", out), str(runs[0]), str(by_bytes), "vocabularies")
    refused(chainrule("mix", runs[0], elsewhere, "--out", out), "different validation data", "--valid")
    refused(chainrule("mix", runs[0], tmp_path / "nothing", "--out", out), "no run at", "nothing")
    refused(chainrule("mix", runs[0], "--out", out), "at least two")
    refused(chainrule("mix", *runs, "--out", out, "--gate", "contxt"), "did you mean 'context'")
    refused(chainrule("mix", *runs, "--out", out, "--kind", "sum"), "unknown kind")
    refused(chainrule("mix", *runs, "--out", runs[0]), "already contains a run")
    refused(chainrule("train", "mixture", "--data", text_file, "--out", out), "chainrule mix")
    assert not out.exists()


def test_runs_with_spread_validation_data_are_mixed_on_it(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    spread = ("--set", "data.valid_from=spread", "--set", "data.test_fraction=0.2")
    for order in (1, 3):
        options = (*spread, "--set", f"model.order={order}", "--out", tmp_path / f"{order}")
        assert chainrule("train", "ngram", "--data", text_file, *options).code == 0
    options = ("--gate", "learned", "--out", tmp_path / "both", "--json")
    outcome = chainrule("mix", tmp_path / "1", tmp_path / "3", *options)
    assert outcome.code == 0, outcome.err
    about = json.loads(outcome.out)
    part = json.loads(chainrule("info", tmp_path / "1", "--json").out)
    for split, fraction in (("validation", 0.1), ("test", 0.2)):
        assert about[split]["data"] == f"{fraction} of {text_file}, spread evenly"
        assert about[split]["fingerprint"] == part[split]["fingerprint"]


def test_a_run_from_before_valid_from_had_its_name_is_read(chainrule: Command, text_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert chainrule("train", "ngram", "--data", text_file, "--set", "data.valid_from=start", "--out", run).code == 0
    config = run / "config.toml"
    (run / "checksums.json").unlink()  # such runs have none
    config.write_text(config.read_text().replace("valid_from", "valid_at"))
    assert RunFolder(run).config().data.valid_from == "start"
    options = ("--set", "data.valid_at=start", "--out", tmp_path / "new")
    outcome = chainrule("train", "ngram", "--data", text_file, *options)
    assert "unknown setting 'data.valid_at'" in outcome.err


def test_mixed_images_are_to_be_drawn(chainrule: Command, tmp_path: Path) -> None:
    for seed in (0, 1):
        settings = {"model": {"order": 2 + seed}}
        package.train("ngram", data="builtin:digits", out=tmp_path / f"{seed}", settings=settings, progress=False)
    outcome = chainrule("mix", tmp_path / "0", tmp_path / "1", "--gate", "learned", "--out", tmp_path / "both")
    assert outcome.code == 0, outcome.err
    assert f"next: chainrule draw {tmp_path / 'both'} --out" in " ".join(outcome.out.split())
