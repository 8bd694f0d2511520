"""The figures that the README states, on the real data they are about. They are skipped where the data is missing."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

import chainrule
from chainrule.comparison.compare import compare
from chainrule.data.dates import date_pairs
from tests.conftest import RealData


def test_a_seven_gram_of_tiny_shakespeare(real_data: RealData, tmp_path: Path) -> None:
    text = real_data("tinyshakespeare") / "input.txt"
    run = chainrule.train("ngram", data=str(text), out=tmp_path / "run", settings={"model": {"order": 7}})
    found = run.info()["validation"]
    assert found["tokens"] == 111_540
    assert found["nats_per_token"] == pytest.approx(1.5165, abs=0.0005)


def test_a_five_gram_of_the_penn_treebank(real_data: RealData, tmp_path: Path) -> None:
    ptb = real_data("ptb")
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
def test_a_gpt_of_tiny_shakespeare_in_five_minutes(real_data: RealData, tmp_path: Path) -> None:
    text = real_data("tinyshakespeare") / "input.txt"
    run = chainrule.train("gpt", data=str(text), out=tmp_path / "run", minutes=5)
    assert run.info()["validation"]["nats_per_token"] <= 1.58


def train_words(folder: Path, name: str, family: str, out: Path, **words: Any) -> chainrule.Run:
    """A run on the words of the Penn Treebank or of WikiText-2, with their own validation and test data."""
    train, valid, test = (str(folder / f"{name}{part}.txt.gz") for part in ("train", "valid", "test"))
    settings = {**words.pop("settings", {}), "data": {"test": test}}
    return chainrule.train(family, data=train, valid=valid, tokenizer="words", out=out, settings=settings, **words)


@pytest.mark.slow
def test_an_lstm_of_the_penn_treebank_in_25_minutes_and_its_mixture_in_40(real_data: RealData, tmp_path: Path) -> None:
    ptb = real_data("ptb")
    lstm = {
        "model": {"width": 200, "dropout": 0.35},
        "train": {"objective": "sampled", "noise": 2048, "batch_tokens": 640, "weight_decay": 0.03},
    }
    run = train_words(ptb, "ptb.", "recurrent", tmp_path / "lstm", minutes=25, threads=1, settings=lstm)
    assert run.info()["test"]["perplexity"] <= 115
    train_words(ptb, "ptb.", "ngram", tmp_path / "ngram")
    parts = [tmp_path / "lstm", tmp_path / "ngram"]
    both = chainrule.mix(parts, out=tmp_path / "both", kind="ensemble", neural_cache=2000)
    assert both.info()["test"]["perplexity"] <= 92


@pytest.mark.slow
def test_a_mixture_of_wikitext_2_in_an_hour(real_data: RealData, tmp_path: Path) -> None:
    wikitext = real_data("wikitext-2")
    settings = {
        "model": {"width": 256, "dropout": 0.25},
        "train": {"objective": "sampled", "noise": 2048, "batch_tokens": 1024, "weight_decay": 0.03},
    }
    train_words(wikitext, "", "recurrent", tmp_path / "lstm", minutes=25, threads=1, settings=settings)
    train_words(wikitext, "", "ngram", tmp_path / "ngram")
    parts = [tmp_path / "lstm", tmp_path / "ngram"]
    both = chainrule.mix(parts, out=tmp_path / "both", kind="ensemble", neural_cache=2000)
    assert both.info()["test"]["perplexity"] <= 125


@pytest.mark.slow
def test_the_best_mixture_of_tiny_shakespeare_in_ten_minutes(real_data: RealData, tmp_path: Path) -> None:
    results = compare(str(real_data("tinyshakespeare") / "input.txt"), out=tmp_path / "comparison", minutes=10)
    best = results.rows[0]
    assert best.kind == "mixture"
    assert best.nats_per_token <= 1.40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("transformer", {"encoder_layers": 2, "decoder_layers": 2}),
        ("fat", {"encoder_layers": 2, "multiple": 2}),
        ("seq2seq", {}),
    ],
    ids=["transformer", "fat", "seq2seq"],
)
def test_dates_are_translated_without_a_mistake_after_three_minutes(
    family: str, model: dict[str, int], tmp_path: Path
) -> None:
    settings = {"model": {**model, "dropout": 0.0}, "train": {"batch_tokens": 512, "label_smoothing": 0.0}}
    run = chainrule.train(family, data="builtin:dates", minutes=3, threads=2, out=tmp_path / "run", settings=settings)
    sources, references = zip(*date_pairs()["test"], strict=True)
    assert run.score_translations(sources, references).exact_match >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "width", "goal"), [("transformer", 192, 38), ("fat", 192, 36), ("seq2seq", 256, 34)]
)
def test_captions_are_translated_after_an_hour(
    real_data: RealData, tmp_path: Path, family: str, width: int, goal: float
) -> None:
    folder = real_data("multi30k")
    english, german = (
        {split: str(folder / f"{split}.{language}.gz") for split in ("train", "val", "test_2016_flickr")}
        for language in ("en", "de")
    )
    settings = {
        "model": {"width": width, "shared_embeddings": True},
        "data": {"source": english["train"], "valid_source": english["val"]},
    }
    run = chainrule.train(
        family,
        data=german["train"],
        valid=german["val"],
        tokenizer="bpe:4000",
        minutes=60,
        threads=2,
        out=tmp_path / "run",
        settings=settings,
    )
    sources, references = (
        gzip.decompress(Path(side["test_2016_flickr"]).read_bytes()).decode().splitlines() for side in (english, german)
    )
    assert run.score_translations(sources, references).bleu >= goal
