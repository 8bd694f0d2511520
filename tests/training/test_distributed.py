"""Training by several processes, started by torchrun as a user starts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import chainrule
from chainrule.cli.failures import report_error
from chainrule.data.batching import Documents, Feed, Lanes, Position, Windows
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.training.process import Launch, launched
from tests.training.loss_scale_of_processes import ONE_SIDED

SETTINGS = [
    "model.width=16", "model.layers=1", "model.heads=2", "model.context=16", "train.batch_tokens=128",
    "train.validate_every=3", "train.validate_tokens=256",
]  # fmt: skip


def torchrun(processes: int, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": os.devnull}
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def train(processes: int, text: Path, out: Path, steps: int, *settings: str, resume: bool = False) -> str:
    """Train a tiny model by torchrun, or in this process if it is the only one; return standard error."""
    overrides = [*SETTINGS, *settings]
    if processes == 1:
        options: Any = {"data": str(text), "out": out, "device": "cpu", "steps": steps, "resume": resume}
        chainrule.train("gpt", overrides=overrides, progress=False, **options)
        return ""
    arguments = ["--data", text, "--out", out, "--device", "cpu", "--steps", steps, *(["--resume"] if resume else [])]
    given = [part for setting in overrides for part in ("--set", setting)]
    return torchrun(processes, "-m", "chainrule", "train", "gpt", *arguments, *given).stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    words = np.array(["the", "a", "cat", "dog", "sat", "ran", "on", "to", "red", "blue", "mat", "house"])
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(" ".join(random.choice(words, 8)) + "\n" for _ in range(200)))
    return file


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    out = tmp_path_factory.mktemp("runs") / "alone"
    train(1, text, out, 6)
    return out


def difference(run: Path, other: Path) -> float:
    first, second = (load_file(path / "model.safetensors") for path in (run, other))
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def validations(run: Path) -> list[float]:
    return [record["valid_nats_per_token"] for record in records(run) if "valid_nats_per_token" in record]


def worst_difference(out: Path, *families: str) -> float:
    torchrun(3, Path(__file__).parent / "gradients_of_processes.py", out, *families)
    found: dict[str, float] = json.loads(out.read_text())
    assert len(found) >= 3 * max(1, len(families))
    return max(found.values())


def test_three_processes_compute_the_gradient_of_one_whether_replicated_or_sharded(tmp_path: Path) -> None:
    assert worst_difference(tmp_path / "differences.json", "bert", "recurrent") < 1e-10


@pytest.mark.slow
def test_three_processes_compute_the_gradient_of_one_for_every_family(tmp_path: Path) -> None:
    assert worst_difference(tmp_path / "differences.json") < 1e-10


def test_two_processes_train_the_model_of_one_and_only_one_of_them_prints(
    text: Path, alone: Path, tmp_path: Path
) -> None:
    printed = train(2, text, tmp_path / "two", 6)
    assert difference(tmp_path / "two", alone) < 1e-4  # float32, and Muon's iteration enlarges rounding
    np.testing.assert_allclose(validations(tmp_path / "two"), validations(alone), rtol=1e-5)
    assert len(re.findall(r"^step 3: ", printed, re.MULTILINE)) == 1
    scores = [json.loads((run / "scores.jsonl").read_text()) for run in (alone, tmp_path / "two")]
    assert scores[0]["nats_per_token"] == pytest.approx(scores[1]["nats_per_token"], rel=1e-5)


def test_a_sharded_run_is_that_of_one_process_and_one_process_continues_it(text: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "sharded", tmp_path / "whole"
    train(2, text, out, 3, "train.parallel=fsdp", "train.schedule=constant")
    train(1, text, out, 6, "train.parallel=ddp", "train.schedule=constant", resume=True)
    train(1, text, whole, 6, "train.schedule=constant")
    assert difference(out, whole) < 1e-4
    np.testing.assert_allclose(validations(out), validations(whole), rtol=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_processes_agree_on_steps_that_overflow_float16(text: Path, tmp_path: Path, parallel: str) -> None:
    """Most of the first steps, and one in which the part of a single process overflows if weights are sharded."""
    arguments = ["train", "gpt", "--data", text, "--out", tmp_path / "run", "--device", "cpu", "--steps", 40]
    settings = [*SETTINGS, "train.precision=float16", f"train.parallel={parallel}"]
    given = [part for setting in settings for part in ("--set", setting)]
    torchrun(2, Path(__file__).parent / "loss_scale_of_processes.py", tmp_path, *arguments, *given)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    halved = [step for step, (before, after) in enumerate(pairwise([2.0**40, *first])) if after < before]
    assert halved[:10] == list(range(10))
    assert (ONE_SIDED in halved) == (parallel == "fsdp")
    assert halved[-1] <= ONE_SIDED  # the others succeed
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(bool(torch.isfinite(weight).all()) for weight in weights.values())
    nats = validations(tmp_path / "run")
    assert nats[-1] < nats[0] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_of_four_processes_continues_on_two_and_on_one(text: Path, tmp_path: Path, parallel: str) -> None:
    """In the order of the data that one process has: the loss of every step is that of its run."""
    out, whole = tmp_path / "parts", tmp_path / "whole"
    settings = [f"train.parallel={parallel}", "train.schedule=constant", "train.optimizer=adamw", "train.log_every=1"]
    for processes, steps in ((4, 8), (2, 16), (1, 24)):
        train(processes, text, out, steps, *settings, resume=processes < 4)
    train(1, text, whole, 24, *settings)
    curves = [[record["loss"] for record in records(run) if "loss" in record] for run in (out, whole)]
    assert len(curves[0]) == len(curves[1]) == 24
    np.testing.assert_allclose(*curves, rtol=1e-5)
    assert difference(out, whole) < 1e-4


ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.mark.parametrize("family", ["ngram", "word2vec"])
def test_a_family_that_is_not_trained_by_gradients_is_refused(
    family: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="2 processes cannot share the work; start it without torchrun"):
        chainrule.train(family, data=str(text), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("rank", "printed"), [(0, "error wrong; mend it\n"), (1, "")])
def test_an_error_that_all_processes_have_is_printed_by_the_first(
    rank: int, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**ENVIRONMENT, "RANK": str(rank)}.items():
        monkeypatch.setenv(name, value)
    assert report_error(ConfigError("wrong; mend it")) == 2
    assert capsys.readouterr().err == printed


def test_a_process_knows_how_it_was_started() -> None:
    environment = {**ENVIRONMENT, "RANK": "3", "WORLD_SIZE": "4"}
    assert launched(environment) == Launch(rank=3, world=4, local_rank=1)
    assert launched({**environment, "TORCHELASTIC_RESTART_COUNT": "2"}).restarts == 2
    assert launched({"RANK": "3"}) == Launch()  # another program's variable


def feeds() -> list[Feed[Any]]:
    tokens = np.arange(1000)
    documents = Corpus.of_rows([tokens[start : start + 1 + start % 7] for start in range(0, 600, 7)], 1000)
    stream = Corpus.of_tokens(tokens, 1000)
    return [
        Windows(stream, 6, 9, seed=3),
        Lanes(stream, 6, 9, seed=3, contiguous=60),
        Documents(documents, 20, None, seed=3),
    ]


@pytest.mark.parametrize("feed", feeds(), ids=lambda feed: type(feed).__name__)
def test_however_many_processes_read_an_epoch_every_example_is_read_once(feed: Feed[Any]) -> None:
    """Also if their number changes within the epoch: 4, then 2, then 1."""
    seen: list[int] = []
    batches = feed.batches_per_epoch(0)
    for index in range(batches):
        world = (4, 2, 1)[3 * index // batches]
        for rank in range(world):
            own, position = feed.of_process(rank, world), Position(0, index)
            if own.idle(position):
                continue
            batch = own.batch(position)
            rows = batch.targets if isinstance(feed, Lanes) else batch.target.ids[batch.target.mask]
            seen += torch.as_tensor(rows).flatten().tolist()
    alone = []
    for index in range(batches):
        batch = feed.batch(Position(0, index))
        alone += (batch.targets if isinstance(feed, Lanes) else batch.target.ids[batch.target.mask]).flatten().tolist()
    assert sorted(seen) == sorted(alone)
    assert len(set(seen)) == len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_whose_processes_are_killed_ends_with_the_weights_of_an_uninterrupted_one(parallel: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "restarts.py"
    arguments = ["--kills", "3", "--steps", "100", "--parallel", parallel]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(done.stdout) == {"kills": 3, "difference": 0.0, "same_losses": True, "steps": 100}


def test_parts_of_a_checkpoint_are_read_by_another_number_of_processes_and_hold_no_pickle(
    text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(3, text, out, 3, "train.parallel=fsdp", "train.schedule=constant")
    [state] = (out / "state").iterdir()
    names = {file.name for file in state.iterdir()}
    assert {name for name in names if not name.endswith(".safetensors")} == {"values.json", "checksums.json"}
    assert len([name for name in names if name.startswith("shard-")]) == 3
    train(2, text, out, 6, "train.parallel=fsdp", "train.schedule=constant", resume=True)
    best, last = (chainrule.load(out, checkpoint=checkpoint) for checkpoint in ("best", "last"))
    assert sum(p.numel() for p in last.model.parameters()) == sum(p.numel() for p in best.model.parameters())
    whole = tmp_path / "whole"
    train(1, text, whole, 6, "train.schedule=constant")
    assert difference(out, whole) < 1e-4
