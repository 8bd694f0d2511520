"""`compare` from data to results, with real processes and small models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from chainrule.comparison.compare import compare
from chainrule.comparison.folder import ComparisonFolder
from chainrule.comparison.mixture import useful_parts
from chainrule.comparison.plan import make_jobs, split_config
from chainrule.comparison.progress import ComparisonListener
from chainrule.comparison.runner import failure_reason
from chainrule.errors import ConfigError, RunError
from chainrule.families import FAMILIES
from chainrule.tasks import load
from chainrule.tasks.text_comparison import TextComparison

SIZES = {"vocabulary": 65}
SMALL = ["finite_memory.model.width=16", "recurrent.model.width=16", "recurrent.model.layers=1"]
KEYS = {
    "name",
    "parameters",
    "nats_per_token",
    "bits_per_byte",
    "interval",
    "perplexity",
    "train_tokens_per_second",
    "decode_tokens_per_second",
    "seconds",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    words = [
        "the",
        "chain",
        "rule",
        "gives",
        "every",
        "word",
        "its",
        "share",
        "of",
        "what",
        "the",
        "words",
        "before",
        "have",
        "left",
    ]
    random = np.random.default_rng(0)
    lines = [" ".join(random.choice(words, size=9)) for _ in range(300)]
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    """A comparison of three families, of which one cannot be trained."""
    out = tmp_path_factory.mktemp("out") / "comparison"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", str(tmp_path_factory.mktemp("cache")))
        results = compare(
            str(text),
            out=out,
            families=["ngram", "finite_memory", "recurrent"],
            tokens=6000,
            overrides=[*SMALL, "recurrent.model.cell=lstn"],
            command="chainrule compare …",
        )
    return results, out


def test_results_json_has_all_documented_keys(finished):
    results, out = finished
    saved = json.loads((out / "results.json").read_text())
    assert set(saved["rows"][0]) >= KEYS
    assert {"rows", "best", "recommendation", "protocol"} <= set(saved)
    assert saved["best"] == saved["rows"][0]["name"] == min(results.rows, key=lambda row: row.bits_per_byte).name
    assert {row.name for row in results.rows} == {"ngram", "finite_memory", "mixture", "mixture+cache"}
    for row in results.rows:
        low, high = row.interval
        assert low < row.bits_per_byte < high
        assert row.decode_tokens_per_second > 0


def test_a_family_that_fails_is_listed_and_the_others_continue(finished):
    results, _ = finished
    [failure] = results.failures
    assert failure.name == "recurrent"
    assert "lstn" in failure.reason


def test_the_mixture_is_no_worse_than_its_parts_on_text_that_its_gate_was_not_fitted_on(finished):
    results, _ = finished
    bits = {row.name: row.bits_per_byte for row in results.rows}
    assert bits["mixture"] <= min(bits["ngram"], bits["finite_memory"]) + 0.01


def test_the_static_and_the_adaptive_mixture_are_two_rows_that_name_their_evaluation(finished):
    results, out = finished
    saved = json.loads((out / "results.json").read_text())
    evaluation = {row["name"]: row["evaluation"] for row in saved["rows"]}
    assert evaluation.pop("mixture+cache") == "adaptive"
    assert set(evaluation.values()) == {"static"}
    assert saved["protocol"]["evaluation"]["mixture+cache"].startswith("adaptive")
    assert saved["protocol"]["evaluation"]["all other models"].startswith("static")
    assert load(out / "runs" / "mixture+cache").generate("the ", length=5)[0].tokens == 5
    assert results.notes == []  # a budget in tokens has no deadline


def test_every_row_is_a_run_with_the_score_of_the_table(finished, text):
    results, out = finished
    held_out = text.read_text()
    held_out = held_out[int(len(held_out) * 0.9) :]
    for row in results.rows:
        run = load(out / row.run)
        assert run.score(held_out).bits_per_byte == pytest.approx(row.bits_per_byte, rel=1e-4)


def test_the_report_is_written_and_names_the_best_model(finished):
    results, out = finished
    page = (out / "report.html").read_text()
    assert results.rows[0].name in page
    assert "chainrule compare" in page


def test_a_finished_comparison_is_not_run_again(finished, text):
    results, out = finished
    options = {"families": ["ngram", "finite_memory", "recurrent"], "tokens": 6000}
    settings = [*SMALL, "recurrent.model.cell=lstn"]
    before = (out / "runs" / "finite_memory" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(RunError, match="--resume"):
        compare(str(text), out=out, overrides=settings, **options)
    again = compare(str(text), out=out, overrides=settings, resume=True, **options)
    assert (out / "runs" / "finite_memory" / "model.safetensors").stat().st_mtime_ns == before
    assert [row.bits_per_byte for row in again.rows] == [row.bits_per_byte for row in results.rows]
    with pytest.raises(RunError, match="another budget"):
        compare(str(text), out=out, overrides=settings, resume=True, families=options["families"], tokens=7000)


def test_ctrl_c_stops_a_comparison_and_keeps_finished_families(text, tmp_path):
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "chainrule", "compare", "--data", str(text), "--out", str(out)]
    command += ["--families", "ngram,finite_memory", "--tokens", "400000", "--set", SMALL[0]]
    log = out / "runs" / "finite_memory" / "metrics.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    while process.poll() is None and not log.exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0  # as for `train`
    assert b"--resume" in stderr
    folder = ComparisonFolder(out)
    assert folder.job_result("ngram") is not None
    assert folder.job_result("finite_memory") is None
    assert b"Traceback" not in stderr


def test_gates_are_never_fitted_on_the_text_of_the_metrics():
    own = split_config("a.txt", None, None, None, {})
    assert (own.test_fraction, own.valid) == (0.1, None)
    with_valid = split_config("a.txt", "v.txt", None, None, {})
    assert (with_valid.test, with_valid.valid) == ("v.txt", None)
    with_both = split_config("a.txt", "v.txt", "t.txt", None, {})
    assert (with_both.test, with_both.valid) == ("t.txt", "v.txt")


def test_a_part_without_weight_is_left_out_of_the_mixture():
    random = np.random.default_rng(0)
    good = random.exponential(size=4000).astype(np.float32)
    other = random.exponential(size=4000).astype(np.float32)
    found = useful_parts({"bad": good + 5, "other": other + 0.5, "good": good})
    assert found == ["good", "other"]  # the most useful first
    assert useful_parts({"bad": good + 5, "good": good, "worse": good + 6}) == ["good", "bad"]  # never fewer than two


@pytest.mark.parametrize("family", TextComparison.families())
def test_every_family_gets_valid_settings(family):
    [job] = make_jobs(
        [family], model_settings=lambda _: SIZES, train_tokens=10**6, operations=1e13, tokens=None, chosen={}
    )
    model = FAMILIES[family].Config.parse({"vocabulary": 65, **job.model})
    assert model.vocabulary == 65


def test_the_reason_of_a_failure_is_the_signal_or_the_last_line_of_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("something\nthe last line\n")
    assert failure_reason(2, log) == "the last line"
    assert "SIGKILL" in failure_reason(-9, log)


def test_invalid_options_are_reported_in_one_line(text, tmp_path, chainrule):
    common = ["compare", "--data", str(text), "--out", str(tmp_path / "x")]
    for options, message in (
        (["--families", "ngram,gtp"], "gpt"),
        (["--set", "gtp.model.width=3"], "gpt"),
        (["--set", "gpt.width=3"], "gpt.model.KEY"),
        (["--valid", "-"], "standard input"),
        (["--minutes", "0"], "no time to train"),
        (["--valid-fraction", "1.5"], "test_fraction"),
        (["--budget-curve", "--tokens", "100"], "leave --tokens out"),
        (["--valid", str(tmp_path / "missing.txt")], "missing.txt"),
    ):
        outcome = chainrule(*common, *options)
        assert outcome.code == 2
        assert message in outcome.err
    assert not (tmp_path / "x").exists()


def test_unknown_families_are_refused():
    with pytest.raises(ConfigError, match="unknown family"):
        compare("text.txt", out="nowhere", families=["gtp"])


def test_the_order_of_the_ngram_model_follows_from_the_vocabulary():
    def order(vocabulary: int) -> int:
        [job] = make_jobs(
            ["ngram"],
            model_settings=lambda _: {"vocabulary": vocabulary},
            train_tokens=10**6,
            operations=None,
            tokens=1000,
            chosen={},
        )
        return job.model["order"]

    assert (order(65), order(30_000)) == (7, 5)


def test_warnings_about_the_data_are_passed_on_before_training(tmp_path):
    class Stop(Exception):
        pass

    class Notes(ComparisonListener):
        def __init__(self):
            self.lines = []

        def note(self, line):
            self.lines.append(line)

        def planned(self, plan):
            raise Stop

    (tmp_path / "names.txt").write_text("".join(f"name {number:05d}\n" for number in range(600)))
    for settings, expected in (([], 1), (["data.valid_from=spread"], 0)):
        listener = Notes()
        options = {"families": ["ngram"], "overrides": ["data.unit=documents", *settings], "listener": listener}
        with pytest.raises(Stop):
            compare(str(tmp_path / "names.txt"), out=tmp_path / f"out{expected}", **options)
        assert len(listener.lines) == expected
