"""Failures that are not the fault of the input: full disks, signals, memory; and errors for programs that read JSON."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import chainrule as package
from chainrule.errors import RunError, WriteError, memory_problem
from chainrule.files import write_whole
from chainrule.training.checkpoint import RunFolder
from tests.cli.test_bad_input import refused
from tests.conftest import Command

COMMAND = [sys.executable, "-m", "chainrule"]


@pytest.fixture
def ngram(text_file: Path, tmp_path: Path) -> Path:
    out = tmp_path / "ngram"
    return package.train("ngram", data=str(text_file), out=out, overrides=["model.order=3"], progress=False).path


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file may grow beyond a kilobyte, which fails as a full disk does, at the same call."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Errors as JSON


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["info", "nowhere", "--json"], "RunError", "nowhere"),
        (["train", "gpt", "--data", "nothing.txt", "--json"], "DataError", "nothing.txt"),
        (["score", "nowhere", "--json", "--nonsense"], "UsageError", "--nonsense"),
        (["generate", "--json"], "UsageError", "RUN"),
        (["train", "gpt", "--steps", "many", "--json"], "UsageError", "--steps"),
    ],
)
def test_with_json_an_error_is_one_json_object_on_standard_output(
    chainrule: Command, arguments: list[str], kind: str, words: str
) -> None:
    outcome = chainrule(*arguments)
    error = json.loads(outcome.out)["error"]
    assert outcome.code == 2
    assert error["type"] == kind
    assert words in error["message"]
    assert "error" not in outcome.err


def test_a_mistyped_option_is_one_line_that_names_the_help(chainrule: Command) -> None:
    refused(
        chainrule("generate", "run", "--temprature", 1), "--temprature", "--temperature", "chainrule generate --help"
    )


# Full disks


def test_a_file_that_cannot_be_written_is_named_by_export(
    chainrule: Command, ngram: Path, tmp_path: Path, no_room: None
) -> None:
    refused(chainrule("export", ngram, "--to", "arpa", "--out", tmp_path / "out"), "out/model.arpa", "ulimit")
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_cannot_be_written_are_named_by_export(
    chainrule: Command, text_file: Path, tmp_path: Path
) -> None:
    sizes = {"layout": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 16}
    common = {"data": str(text_file), "steps": 1, "progress": False}
    run = package.train("gpt", out=tmp_path / "gpt", settings={"model": sizes}, **common)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        outcome = chainrule("export", run.path, "--to", "hf", "--out", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(outcome, "out/model.safetensors", "ulimit")


def test_a_folder_that_cannot_be_written_promises_no_checkpoints(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match=r"cannot write .*disk is full; [^;]*$"), folder.explained():
        raise OSError(errno.ENOSPC, "full")
    folder.path.mkdir()
    (folder.path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="earlier checkpoints are intact"), folder.explained():
        raise OSError(errno.ENOSPC, "full")


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"cannot write '.*file/deep/text.txt': not a directory; choose another"):
        write_whole(tmp_path / "file" / "deep" / "text.txt", "text")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full_standard_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error cannot write 'standard output': the disk is full")
    assert len(done.stderr.splitlines()) == 1


# Signals


@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_an_interrupted_count_leaves_nothing(number: signal.Signals, status: int, name: str, tmp_path: Path) -> None:
    rng = random.Random(0)
    text = tmp_path / "text.txt"
    text.write_text("".join(rng.choices("abcdefgh \n", k=400_000)))
    out, temporary = tmp_path / "run", tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*COMMAND, "train", "ngram", "--data", str(text), "--out", str(out), "--set", "model.order=24"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line == "estimating\n":
            break
    process.send_signal(number)
    *_, last = process.stderr.read().splitlines()
    assert process.wait() == status
    assert last == f"stopped by {name}; unfinished files are deleted"
    assert not out.exists()
    assert list(temporary.iterdir()) == []
    assert not list(Path(os.environ["CHAINRULE_CACHE"]).glob(".*"))


def test_a_run_that_fails_before_its_first_checkpoint_does_not_block_the_next(text_file: Path, tmp_path: Path) -> None:
    sizes = {"layers": 1, "width": 16, "heads": 2, "context": 16}
    common = {"data": str(text_file), "steps": 2, "out": tmp_path / "run"}
    with pytest.raises(package.errors.TrainingError, match="diverged"):
        package.train("gpt", settings={"model": sizes, "train": {"learning_rate": 1e30}}, **common)
    assert not (tmp_path / "run").exists()
    assert package.train("gpt", settings={"model": sizes}, **common).outcome


# Memory


def test_a_failed_allocation_is_one_line_with_a_remedy() -> None:
    with pytest.raises(RuntimeError) as torch_error:
        torch.empty(1 << 55)
    with pytest.raises(MemoryError) as numpy_error:
        np.empty(1 << 55)
    for error in (torch_error.value, numpy_error.value):
        problem = memory_problem(error)
        assert problem is not None
        assert problem.startswith("out of memory (allocating ")
        assert "train.batch_tokens" in problem
    assert memory_problem(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


def test_an_order_beyond_every_repetition_is_refused_before_counting(chainrule: Command, tmp_path: Path) -> None:
    rng = random.Random(0)
    text = tmp_path / "text.txt"
    repeated = "".join(rng.choices("abcd", k=40))
    between, end = ("".join(rng.choices("abcdefgh", k=count)) for count in (4000, 1000))
    text.write_text(f"{repeated}!{between}?{repeated}.{end}")
    outcome = chainrule("train", "ngram", "--data", text, "--out", tmp_path / "run", "--set", "model.order=1000")
    refused(outcome, "model.order 1000", "more than 40 tokens", "41 or less")
    assert not (tmp_path / "run").exists()
