"""`chainrule serve` as a command; what it serves is tested in tests/serving."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from chainrule.api import train
from tests.conftest import Command


@pytest.fixture
def run(tmp_path: Path, text_file: Path) -> Path:
    train("ngram", data=str(text_file), out=str(tmp_path / "run"), progress=False, scored=False)
    return tmp_path / "run"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_server_names_its_address_and_ends_without_an_error(run: Path, stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "chainrule", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.search(r"http://127.0.0.1:\d+", process.stderr.readline())
        assert address is not None
        while "startup complete" not in process.stderr.readline():
            pass
        answer = httpx.post(f"{address[0]}/v1/completions", json={"model": "run", "prompt": "the", "max_tokens": 3})
        assert answer.status_code == 200
        process.send_signal(stop)
        rest = process.stderr.read()
    assert process.returncode == 0
    assert "deleted" not in rest


def test_a_port_in_use_is_an_error_in_one_line(chainrule: Command, run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = chainrule("serve", run, "--port", taken.getsockname()[1])
    assert done.code == 2
    assert "choose another --port" in done.err


def test_a_folder_that_is_missing_is_refused(chainrule: Command, tmp_path: Path) -> None:
    done = chainrule("serve", tmp_path / "nothing")
    assert done.code == 2
    assert "no run and no folder of runs" in done.err


def test_weights_are_float32_or_int8(chainrule: Command, tmp_path: Path) -> None:
    done = chainrule("serve", tmp_path, "--weights", "int4")
    assert done.code != 0
    assert "--weights is 'int4'; give float32 or int8" in done.err
