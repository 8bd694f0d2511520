"""Counting within a memory limit, as a user asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from chainrule.data.token_files import TokenFile
from chainrule.data.workers import local_workers
from chainrule.memory import parse_size
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.tasks import load
from chainrule.training.counting import _count_parts
from chainrule.training.progress import Reporter
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


def children() -> set[str]:
    """The processes that this one has started."""
    return {child for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()}


@pytest.mark.parametrize("length", [9001, 9002, 17_999])
def test_workers_count_parts_of_equal_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    np.zeros(length, np.uint8).tofile(tmp_path / "tokens.bin")
    tokens = TokenFile.of(np.memmap(tmp_path / "tokens.bin", np.uint8, "r"), None)
    assert tokens is not None
    monkeypatch.setattr("chainrule.training.counting.PART", 9000)
    sizes: list[int] = []

    class Counted(NGram):
        def count_jobs(self, text: TokenFile, size: int, share: float) -> list[Any]:
            jobs = super().count_jobs(text, size, share)
            sizes.extend(job.args[2] - job.args[1] for job in jobs)
            return jobs

    model = Counted(NGramConfig(vocabulary=2, order=2))
    model.count_on_disk(tmp_path, 1 << 20)
    with local_workers(2):
        before = children()
        _count_parts(model, tokens, Reporter())
        assert children() == before  # workers that wait would keep memory from merging
    assert len(sizes) == 2
    assert sum(sizes) == length
    assert max(sizes) - min(sizes) <= 1


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
