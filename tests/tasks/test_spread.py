"""Scoring and distillation by workers: the results are those of one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Command

import chainrule
from chainrule.data.workers import LocalWorkers, local_workers, working_on
from chainrule.errors import ConfigError
from chainrule.tasks.scoring import ScoreRequest
from chainrule.tasks.spread import OpenedRun, evaluate_in_jobs
from chainrule.training.process import LAUNCHED

TINY = {"width": 16, "layers": 1, "heads": 2, "context": 16}


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    with LocalWorkers(2) as executor:
        yield executor


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spread") / "text.txt"
    file.write_text("".join(f"line {number}: the cat sat on mat {number * 7 % 13}\n" for number in range(400)))
    return file


def scored(run: Any, data: str, workers: Executor | None) -> dict[str, Any]:
    request = ScoreRequest(data=data)
    if workers is None:
        return run.evaluate(request).values  # type: ignore[no-any-return]
    with working_on(workers):
        return evaluate_in_jobs(run, OpenedRun(run.path), request).values


@pytest.mark.parametrize(
    ("family", "unit", "settings"),
    [
        ("ngram", "stream", {"order": 4}),
        ("ngram", "documents", {"order": 4}),
        ("gpt", "stream", TINY),
        ("gpt", "documents", TINY),
        ("recurrent", "stream", {"width": 8, "layers": 1}),
    ],
)
def test_a_score_that_is_divided_is_the_same(
    family: str,
    unit: str,
    settings: dict[str, Any],
    text: Path,
    tmp_path: Path,
    workers: Executor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chainrule.evaluation.predictions.TARGETS_AT_ONCE", 1000)
    values = {"model": settings, "data": {"unit": unit}, "train": {"steps": 2} if family != "ngram" else {}}
    run = chainrule.train(family, data=str(text), out=tmp_path / "run", settings=values, progress=False)
    assert scored(run, str(text), workers) == scored(run, str(text), None)
    with local_workers(1):  # the same jobs, one after the other
        assert (
            scored(run, str(text), None)
            == evaluate_in_jobs(run, OpenedRun(run.path), ScoreRequest(data=str(text))).values
        )
    lines = [json.loads(line) for line in (run.path / "scores.jsonl").read_text().splitlines()]
    assert [line["data"] for line in lines].count(str(text)) == 4  # once by each


@pytest.mark.parametrize(("family", "settings"), [("ngram", {"order": 4}), ("gpt", TINY)])
def test_a_score_by_workers_with_several_threads_is_the_same(
    family: str, settings: dict[str, Any], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"model": settings, "train": {"steps": 2} if family != "ngram" else {}}
    run = chainrule.train(family, data=str(text), out=tmp_path / "run", settings=values, progress=False)
    with ThreadPoolExecutor(2) as threads:
        assert scored(run, str(text), threads) == scored(run, str(text), None)


@pytest.mark.slow
def test_workers_of_dask_with_several_threads_do_the_same(text: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    run = chainrule.train(
        "gpt", data=str(text), out=tmp_path / "run", settings={"model": TINY}, steps=2, progress=False
    )
    cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=3, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client, client.get_executor(pure=False) as executor:
        assert scored(run, str(text), executor) == scored(run, str(text), None)


def test_what_is_not_divided_is_refused(chainrule: Command, text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert chainrule("train", "ngram", "--data", text, "--out", run).code == 0
    found = chainrule("score", run, "--text", "cat", "--on", "local:1")
    assert found.code != 0
    assert "give a file with --data" in found.err


def test_a_teacher_translates_the_same_by_several_workers(
    workers: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.tasks.distillation.BUFFERED_LINES", 128)
    model = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "context": 32, "dropout": 0.0}
    teacher = chainrule.train(
        "transformer", data="builtin:dates", out=tmp_path / "teacher", progress=False, scored=False,
        settings={"model": model, "train": {"steps": 3}},
    )  # fmt: skip
    found = []
    for name, executor in (("local", None), ("cluster", workers)):
        monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / name))
        chainrule.train(
            "transformer", data="builtin:dates", distil_from=str(teacher.path), out=tmp_path / f"run-{name}", steps=1,
            progress=False, scored=False, executor=executor,
            settings={"model": model, "data": {"distil_pairs": 300}},
        )  # fmt: skip
        files = (file for file in (tmp_path / name).glob("*/target.txt") if not (file.parent / "source.txt").exists())
        found.append(sorted(file.read_text() for file in files))  # of training and validation data
    assert found[0] == found[1]
    assert max(len(text.splitlines()) for text in found[0]) > 300


def test_a_single_process_is_needed_for_a_cluster(monkeypatch: pytest.MonkeyPatch, chainrule: Command) -> None:
    for name, value in (dict.fromkeys(LAUNCHED, "0") | {"WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    found = chainrule("train", "gpt", "--data", "builtin:prose", "--on", "local:2")
    assert found.code != 0
    assert "--on is for one process" in found.err


def test_only_large_data_is_divided(text: Path, tmp_path: Path, workers: Executor) -> None:
    run = chainrule.train("ngram", data=str(text), out=tmp_path / "run", progress=False)
    with working_on(workers), pytest.raises(ConfigError, match="without --per-token"):
        evaluate_in_jobs(run, OpenedRun(run.path), ScoreRequest(data=str(text), per_token=True))
