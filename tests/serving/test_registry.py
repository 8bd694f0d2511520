from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from chainrule.api import train
from chainrule.errors import ConfigError, RunError
from chainrule.serving import registry as module
from chainrule.serving.registry import Registry, UnknownRun
from chainrule.tasks import load
from chainrule.tasks.text import TextRun


@pytest.fixture
def runs(tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SCANS", 0.0)
    train("ngram", data=str(text_file), out=str(tmp_path / "runs" / "first"), progress=False, scored=False)
    return tmp_path / "runs"


def test_a_run_is_named_by_its_folder(runs: Path) -> None:
    registry = Registry([runs / "first"])
    assert registry.names() == ["first"]
    assert registry.get("first").config.family == "ngram"


def test_an_unknown_name_is_refused_with_the_nearest(runs: Path) -> None:
    with pytest.raises(UnknownRun, match="did you mean 'first'"):
        Registry([runs]).get("frst")


@pytest.mark.parametrize("name", ["../runs/first", "/etc", "first/.", "", "first/../first", "."])
def test_a_path_is_not_a_name(runs: Path, name: str) -> None:
    with pytest.raises(UnknownRun):
        Registry([runs]).get(name)


def test_runs_appear_and_disappear_without_a_restart(runs: Path) -> None:
    registry = Registry([runs])
    shutil.copytree(runs / "first", runs / "second")
    assert registry.names() == ["first", "second"]
    assert registry.get("second").path == runs / "second"
    shutil.rmtree(runs / "second")
    assert registry.names() == ["first"]
    with pytest.raises(UnknownRun):
        registry.get("second")


def test_a_training_without_weights_is_a_folder_but_not_yet_a_run(runs: Path) -> None:
    shutil.copytree(runs / "first", runs / "second")
    (runs / "second" / "model.safetensors").unlink()
    registry = Registry([runs])
    assert registry.names() == ["first"]
    assert set(registry.folders()) == {"first", "second"}
    with pytest.raises(RunError, match="has no weights yet"):
        Registry([runs / "second"])


def test_a_run_is_loaded_once_and_again_when_its_weights_change(runs: Path, text_file: Path) -> None:
    registry = Registry([runs])
    before = registry.get("first")
    assert registry.get("first") is before
    shutil.rmtree(runs / "first")
    train("ngram", data=str(text_file), out=str(runs / "first"), progress=False, scored=False)
    assert registry.get("first") is not before


def test_a_run_that_was_looked_at_a_moment_ago_is_given_without_looking_again(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry([runs])
    loaded = registry.get("first")
    assert registry.recent("first") is None  # its time is over at once here
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SCANS", 1e9)
    assert registry.recent("first") is loaded
    assert registry.recent("second") is None


def test_runs_that_are_given_themselves_are_loaded_at_the_start(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SCANS", 1e9)
    shutil.copytree(runs / "first", runs / "damaged")
    (runs / "damaged" / "model.safetensors").write_bytes(b"nothing")
    registry = Registry([runs / "first", runs / "damaged"])
    registry.preload()
    assert registry.recent("first") is not None
    assert "run 'damaged' cannot be loaded" in caplog.text
    watched = Registry([runs])
    watched.preload()
    assert watched.recent("first") is None


def test_two_runs_of_one_name_are_refused(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "others" / "first")
    with pytest.raises(ConfigError, match="two runs are named 'first'"):
        Registry([runs, tmp_path / "others"])


def test_weights_of_int8_are_for_runs_with_a_compiled_step(runs: Path, text_file: Path) -> None:
    small = {"model": {"layers": 1, "width": 16, "heads": 2, "context": 32}}
    train("gpt", data=str(text_file), out=runs / "gpt", steps=2, settings=small, progress=False, scored=False)
    registry = Registry([runs], weights="int8")
    assert registry.get("first").config.family == "ngram"
    found, expected = registry.get("gpt"), load(runs / "gpt", TextRun).with_weights("int8")
    assert isinstance(found, TextRun)
    assert found.generate("the", length=20, seed=1) == expected.generate("the", length=20, seed=1)
    assert (runs / "gpt" / "int8.jsonl").exists()  # what it costs is measured once


def test_while_a_run_is_loaded_the_others_can_be_used(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(runs / "first", runs / "second")
    registry = Registry([runs])
    registry.get("first")
    begun, goes_on = threading.Event(), threading.Event()

    def slow_load(path: Path, **options: Any) -> Any:
        begun.set()
        assert goes_on.wait(20)
        return load(path, **options)

    monkeypatch.setattr(module, "load", slow_load)
    found: list[Any] = []
    loading = [threading.Thread(target=lambda: found.append(registry.get("second"))) for _ in range(2)]
    for thread in loading:
        thread.start()
    assert begun.wait(20)
    assert registry.names() == ["first", "second"]
    assert registry.get("first").path == runs / "first"
    goes_on.set()
    for thread in loading:
        thread.join()
    assert found[0] is found[1]
