"""The figures that the README states, on the real data they are about. They are skipped where the data is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import chainrule


def test_a_seven_gram_of_tiny_shakespeare(shared_data: Path, tmp_path: Path) -> None:
    text = shared_data / "tinyshakespeare" / "input.txt"
    run = chainrule.train("ngram", data=str(text), out=tmp_path / "run", settings={"model": {"order": 7}})
    found = run.info()["validation"]
    assert found["tokens"] == 111_540
    assert found["nats_per_token"] == pytest.approx(1.5165, abs=0.0005)


def test_a_five_gram_of_the_penn_treebank(shared_data: Path, tmp_path: Path) -> None:
    ptb = shared_data / "ptb"
    settings = {"model": {"order": 5}, "data": {"test": str(ptb / "ptb.test.txt.gz")}}
    run = chainrule.train(
        "ngram",
        data=str(ptb / "ptb.train.txt.gz"),
        valid=str(ptb / "ptb.valid.txt.gz"),
        tokenizer="words",
        out=tmp_path / "run",
        settings=settings,
    )
    found = run.info()["test"]
    assert found["tokens"] == 78_669 + 3_761  # words, and one end a line
    assert found["perplexity"] == pytest.approx(141.0, abs=1.5)
    assert found["word_perplexity"] == pytest.approx(found["perplexity"])


@pytest.mark.slow
def test_a_gpt_of_tiny_shakespeare_in_five_minutes(shared_data: Path, tmp_path: Path) -> None:
    text = shared_data / "tinyshakespeare" / "input.txt"
    run = chainrule.train("gpt", data=str(text), out=tmp_path / "run", minutes=5)
    assert run.info()["validation"]["nats_per_token"] <= 1.58


@pytest.mark.slow
def test_an_lstm_of_the_penn_treebank_in_25_minutes(shared_data: Path, tmp_path: Path) -> None:
    ptb = shared_data / "ptb"
    run = chainrule.train(
        "recurrent",
        data=str(ptb / "ptb.train.txt.gz"),
        valid=str(ptb / "ptb.valid.txt.gz"),
        tokenizer="words",
        out=tmp_path / "run",
        minutes=25,
        settings={"model": {"width": 200}, "data": {"test": str(ptb / "ptb.test.txt.gz")}},
    )
    assert run.info()["test"]["perplexity"] <= 115
