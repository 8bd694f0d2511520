"""Comparisons whose jobs run on a cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import chainrule
from chainrule.comparison.results import ComparisonResults
from chainrule.data.cluster import connected
from chainrule.errors import ConfigError
from tests.conftest import Command

distributed = pytest.importorskip("distributed")

SETTINGS: dict[str, Any] = {
    "families": ["ngram", "recurrent", "finite_memory"],
    "tokens": 6000,
    "progress": False,
    "overrides": [
        *(f"{family}.{setting}" for family in ("recurrent", "finite_memory") for setting in
          ("model.width=8", "model.layers=1", "train.batch_tokens=64", "train.save_every=5", "train.log_every=1")),
        "ngram.model.order=3",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text("".join(f"line {number}: the cat sat on mat {number * 7 % 13}\n" for number in range(300)))
    return file


def scores(results: ComparisonResults) -> dict[str, float]:
    assert not results.failures
    return {row.name: row.bits_per_byte for row in results.rows}


def kill_a_busy_worker(client: Any, out: Path) -> None:
    """SIGKILL the worker that trains a model, once its first checkpoint is there."""
    while not (states := list(out.glob("runs/*/state/step-*"))):
        time.sleep(0.02)
    name = states[0].parts[-3]
    for pid in client.run(os.getpid).values():
        children = Path(f"/proc/{pid}/task")
        if any(name in _held(int(child)) for task in children.iterdir() for child in _children(task)):
            os.kill(pid, signal.SIGKILL)
            return
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


def _held(pid: int) -> str:
    try:
        return " ".join(str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the worker of a job is found by /proc")
def test_a_comparison_on_a_cluster_that_loses_a_worker_is_complete_and_equals_the_local_one(
    text: Path, tmp_path: Path
) -> None:
    local = chainrule.compare(str(text), out=tmp_path / "local", **SETTINGS)
    out = tmp_path / "cluster"
    with connected("local:2") as executor:
        client: Any = executor._client  # type: ignore[attr-defined]
        killer = threading.Thread(target=kill_a_busy_worker, args=(client, out), daemon=True)
        killer.start()
        found = chainrule.compare(str(text), out=out, executor=executor, **SETTINGS)
        killer.join(timeout=60)
        assert not killer.is_alive(), "no worker was killed"
    assert scores(found) == scores(local)


@pytest.mark.parametrize("where", ["local:none", "local:0", "somewhere"])
def test_a_cluster_that_cannot_be_understood_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match=r"--on '.*(for example --on local:4|correct it)"), connected(where):
        pass


def test_a_file_that_describes_no_known_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text("cluster: dask_nothing.SLURMCluster\nworkers: 2\n")
    with pytest.raises(ConfigError, match="there is no 'dask_nothing"), connected(str(file)):
        pass
    file.write_text("cluster: x.Y\nworkers: 2\nmemory: 2\n")
    with pytest.raises(ConfigError, match=r"unknown setting 'slurm\.yaml\.memory'"), connected(str(file)):
        pass


@pytest.mark.slow
def test_a_text_is_encoded_in_shards_on_a_cluster_as_on_this_machine(
    chainrule: Command, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for number, place in enumerate([(), ("--on", "local:2")]):
        monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / str(number)))
        outcome = chainrule("data", text, "--tokenizer", "words", "--json", *place)
        assert outcome.code == 0, outcome.err
        found.append(json.loads(outcome.out))
        monkeypatch.setattr("chainrule.data.text.SHARD", 2000)
    assert found[0] == found[1]
