"""Training of word vectors: budgets, resuming, and the reported loss."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule
from chainrule.api import train
from chainrule.models import word2vec
from chainrule.models.word2vec import Word2Vec
from chainrule.tasks.word_vectors import WordVectorRun

SMALL = {"model": {"width": 8}, "train": {"batch_tokens": 256}}


def trained(data: Path, out: Path, **words: Any) -> WordVectorRun:
    run = train("word2vec", data=str(data), out=out, tokenizer="words", threads=1, settings=SMALL, **words)
    assert isinstance(run, WordVectorRun)
    return run


@pytest.fixture(params=["compiled", "products"])
def step_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With Numba and without."""
    if request.param == "products":
        monkeypatch.setattr(word2vec, "find_spec", lambda name: None)
    else:
        pytest.importorskip("numba")
    return str(request.param)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(text_file: Path, tmp_path: Path, step_kind: str) -> None:
    whole = trained(text_file, tmp_path / "whole", steps=9)
    trained(text_file, tmp_path / "parts", steps=9, overrides=["train.schedule=constant"])
    constant = trained(text_file, tmp_path / "constant", steps=4, overrides=["train.schedule=constant"])
    again = trained(text_file, tmp_path / "constant", steps=9, resume=True)
    reference = chainrule.load(tmp_path / "parts")
    assert isinstance(reference.model, Word2Vec)
    assert constant.outcome is not None
    assert constant.outcome.step == 4
    for one, other in zip(again.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(whole.model.parameters()), next(again.model.parameters()))


def test_the_reported_loss_is_the_mean_over_the_text(text_file: Path, tmp_path: Path, step_kind: str) -> None:
    """At a learning rate near zero no vector moves, so every score is 0 and costs log 2."""
    settings = ["train.learning_rate=1e-12", "model.subsample=0"]
    run = trained(text_file, tmp_path / "run", epochs=1, overrides=[*settings, "model.window=1", "train.log_every=1"])
    losses = [record for record in run.folder.records("metrics.jsonl") if "loss" in record]
    text = text_file.read_text()
    words, lines = text[: int(0.9 * len(text))].split(), text[: int(0.9 * len(text))].count("\n")
    tokens = len(words) + lines
    pairs = 2 * (len(words) - lines)  # every word with its neighbours on a line
    mean = sum(one["loss"] for one in losses) / len(losses)
    expected = pairs * (1 + 5) * 0.6931 / tokens
    assert mean == pytest.approx(expected, rel=0.1), "up to windows that end where a batch does, and unequal batches"


def test_budgets_in_tokens_and_epochs_end_a_run(text_file: Path, tmp_path: Path) -> None:
    by_tokens = trained(text_file, tmp_path / "tokens", tokens=600)
    assert by_tokens.outcome is not None
    assert by_tokens.outcome.tokens == 768, "three batches of 256"
    by_epochs = trained(text_file, tmp_path / "epochs", epochs=2)
    assert by_epochs.outcome is not None
    assert by_epochs.outcome.step % 2 == 0


def test_the_validation_loss_is_recorded(text_file: Path, tmp_path: Path) -> None:
    run = trained(text_file, tmp_path / "run", epochs=30, overrides=["train.learning_rate=0.2"])
    found = [
        record["valid_nats_per_token"]
        for record in run.folder.records("metrics.jsonl")
        if "step" in record and "valid_nats_per_token" in record
    ]
    assert found[-1] < found[0]
    assert run.info()["validation"]["nats_per_token"] > 0


def test_overfitting_is_said_and_the_last_vectors_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, other = tmp_path / "data.txt", tmp_path / "other.txt"
    data.write_text("a b\nc d\n" * 100)
    other.write_text("a d\nc b\n" * 20)
    settings = {"model": {"width": 8, "subsample": 0}, "train": {"batch_tokens": 64, "learning_rate": 0.1}}
    run = train("word2vec", data=str(data), valid=str(other), epochs=5, out=tmp_path / "run", settings=settings)
    error = " ".join(capsys.readouterr().err.split())
    found = re.search(r"the model overfits: .* lowest at step (\d+) .* rose to \S+ by step (\d+); the last", error)
    assert found is not None, error
    assert int(found[1]) < int(found[2])
    assert run.outcome is not None
    assert run.outcome.best_step == int(found[2])


def test_by_default_words_that_occur_fewer_than_five_times_are_unknown(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "rare.txt").write_text("unicorn\n" + text_file.read_text())
    run = train("word2vec", data=str(tmp_path / "rare.txt"), out=tmp_path / "run", steps=1)
    assert isinstance(run, WordVectorRun)
    assert "bird" in run.vectors.indices
    assert "unicorn" not in run.vectors.indices
    assert not set(run.vectors.indices) & {"\n", "", "<unk>", "\ufffd"}
