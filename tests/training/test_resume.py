"""A killed run that is resumed equals an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import chainrule

SMALL = {
    "gpt": {"layers": 1, "width": 16, "heads": 2, "context": 32, "dropout": 0.1},
    "recurrent": {"layers": 1, "width": 16, "segment": 16, "dropout": 0.1},
}
SETTINGS = {"batch_tokens": 128, "save_every": 7, "validate_every": 20, "log_every": 5, "ema": 0.9}


def command_line(family: str, text: Path, out: Path) -> list[str]:
    sets = [f"--set=model.{name}={value}" for name, value in SMALL[family].items()]
    sets += [f"--set=train.{name}={value}" for name, value in SETTINGS.items()]
    command = [sys.executable, "-m", "chainrule", "train", family, "--data", str(text), "--out", str(out)]
    return [*command, "--steps", "60", "--threads", "1", "--resume", *sets]


def records(out: Path) -> list[dict[str, object]]:
    """metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


@pytest.mark.parametrize("family", ["gpt", "recurrent"])
def test_a_run_killed_at_random_moments_and_resumed_ends_in_the_same_bits(
    family: str, text_file: Path, tmp_path: Path
) -> None:
    rng = random.Random(family)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command_line(family, text_file, whole), check=True, capture_output=True, env=environment)
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(
            command_line(family, text_file, killed), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        aim = f"step-{rng.randrange(7, 50):09d}"
        while process.poll() is None and not any((killed / "state").glob("step-*")):
            time.sleep(0.01)
        while process.poll() is None and max(path.name for path in (killed / "state").glob("step-*")) < aim:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        assert not any(chainrule.training.checkpoint.RunFolder(killed).file_problems().values())
    done = subprocess.run(
        command_line(family, text_file, killed), check=False, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert kills >= 1
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    last = "state/step-000000060-end/tensors.safetensors"
    assert (killed / last).read_bytes() == (whole / last).read_bytes()
    assert records(killed) == records(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_cleanly(number: signal.Signals, text_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [word for word in command_line("gpt", text_file, out) if word not in ("--steps", "60")]
    process = subprocess.Popen(
        [*command, "--steps", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not (out / "state").is_dir() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    output, problems = process.communicate(timeout=60)
    assert process.returncode == 0, problems
    assert "--resume" in output
    assert "Traceback" not in problems
    assert chainrule.load(out).score("the cat").tokens == 7


def test_a_longer_budget_continues_a_finished_run(text_file: Path, tmp_path: Path) -> None:
    settings = {"model": SMALL["gpt"], "train": SETTINGS}
    common = {"data": str(text_file), "out": tmp_path / "run", "settings": settings}
    first = chainrule.train("gpt", steps=5, **common)
    assert first.outcome is not None
    assert (first.outcome.step, first.outcome.reason) == (5, "budget")
    same = chainrule.train("gpt", steps=5, resume=True, **common)
    assert same.outcome is not None
    assert same.outcome.reason == "complete"
    more = chainrule.train("gpt", steps=9, resume=True, **common)
    assert more.outcome is not None
    assert (more.outcome.step, more.outcome.reason) == (9, "budget")


def test_a_resumed_run_takes_its_settings_from_the_run_folder(text_file: Path, tmp_path: Path) -> None:
    settings = {"model": SMALL["recurrent"], "train": SETTINGS}  # other than the family's own recipe
    chainrule.train("recurrent", data=str(text_file), out=tmp_path / "run", steps=3, settings=settings)
    run = chainrule.train("recurrent", out=tmp_path / "run", steps=5, resume=True)
    assert run.config.train.batch_tokens == SETTINGS["batch_tokens"]
    assert run.outcome is not None
    assert run.outcome.step == 5


def test_changed_settings_of_a_resumed_run_are_refused(text_file: Path, tmp_path: Path) -> None:
    common = {"data": str(text_file), "out": tmp_path / "run", "steps": 2}
    chainrule.train("gpt", settings={"model": SMALL["gpt"]}, **common)
    changed = {"model": {**SMALL["gpt"], "width": 32}}
    with pytest.raises(chainrule.errors.ConfigError, match=r"'model.width' was 16 and is now 32"):
        chainrule.train("gpt", settings=changed, resume=True, **common)
