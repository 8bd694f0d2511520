"""Counting within a memory limit, as a user asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from chainrule.memory import parse_size
from chainrule.models.ngram import NGram
from chainrule.tasks import load
from tests.conftest import Command


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(300)])
    lines = [" ".join(words[np.minimum(random.geometric(0.03, 30), 300) - 1]) for _ in range(1200)]
    file = tmp_path / "long.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("unit", ["stream", "documents"])
def test_a_run_with_little_memory_is_the_same_run(
    chainrule: Command, tmp_path: Path, long_text: Path, unit: str
) -> None:
    base = ("train", "ngram", "--data", long_text, "--tokenizer", "words", "--set", f"data.unit={unit}")
    assert chainrule(*base, "--out", tmp_path / "free").code == 0
    limited = chainrule(*base, "--memory", "1MiB", "--out", tmp_path / "limited")
    assert limited.code == 0, limited.err
    one, other = (tmp_path / name / "model.safetensors" for name in ("free", "limited"))
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"long.txt", "free", "limited"}  # no temporary files
    assert 'memory = "1MiB"' in (tmp_path / "limited" / "config.toml").read_text()


@pytest.mark.parametrize("unit", ["stream", "documents"])
def test_several_workers_count_the_same_model(
    chainrule: Command, tmp_path: Path, long_text: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("train", "ngram", "--data", long_text, "--tokenizer", "words", "--set", f"data.unit={unit}")
    assert chainrule(*base, "--out", tmp_path / "free").code == 0
    monkeypatch.setattr("chainrule.training.counting.PART", 9000)
    limited = chainrule(*base, "--memory", "1MiB", "--set", "data.workers=2", "--out", tmp_path / "limited")
    assert limited.code == 0, limited.err
    one, other = (tmp_path / name / "model.safetensors" for name in ("free", "limited"))
    assert one.read_bytes() == other.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"long.txt", "free", "limited"}


def test_an_interrupted_count_leaves_nothing(
    chainrule: Command, tmp_path: Path, long_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        assert list(tmp_path.glob(".run.counts.*/**/*.bin"))
        raise KeyboardInterrupt

    monkeypatch.setattr("chainrule.models.ngram.KneserNey.tables", interrupted)
    found = chainrule("train", "ngram", "--data", long_text, "--memory", "1MiB", "--out", tmp_path / "run")
    assert found.code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["long.txt"]


def test_memory_is_for_families_that_count(chainrule: Command, tmp_path: Path, long_text: Path) -> None:
    found = chainrule("train", "gpt", "--data", long_text, "--memory", "2GB", "--out", tmp_path / "run")
    assert found.code != 0
    assert "memory 2GB limits the counting of n-grams, and gpt counts none" in found.err


@pytest.mark.parametrize("size", ["much", "12", "-1GB", "1QB"])
def test_a_size_that_is_none_is_refused(chainrule: Command, tmp_path: Path, long_text: Path, size: str) -> None:
    found = chainrule("train", "ngram", "--data", long_text, f"--memory={size}", "--out", tmp_path / "run")
    assert found.code != 0
    assert "give one like 512MB or 2GB" in found.err


def test_sizes_are_in_decimal_or_binary_units() -> None:
    assert [parse_size(text) for text in ("2GB", "1.5 gib", "8000000", "8m")] == [
        2 * 10**9,
        3 << 29,
        8 * 10**6,
        8 * 10**6,
    ]


def test_the_tables_of_a_run_are_mapped_not_copied(chainrule: Command, tmp_path: Path, long_text: Path) -> None:
    assert chainrule("train", "ngram", "--data", long_text, "--out", tmp_path / "run").code == 0
    model = load(tmp_path / "run").model
    assert isinstance(model, NGram)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(tmp_path / "run" / "model.safetensors") in maps.read_text()
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert all(tensor.equal(stored[name]) for name, tensor in model.state_dict().items())
