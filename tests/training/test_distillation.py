"""Training of parallel translation models, with and without sequence-level distillation."""

from __future__ import annotations

import io
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

import chainrule
from chainrule.config import DataConfig
from chainrule.data.parallel import prepare_pairs
from chainrule.errors import ConfigError, DecodingError, RunError
from chainrule.tasks.distillation import distilled
from chainrule.training.progress import Reporter
from tests.conftest import Command

TINY = {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "context": 32, "dropout": 0.0}
TRAIN = {"batch_tokens": 256, "validate_tokens": 300, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Words and their reversals."""
    rng = random.Random(1)
    folder = tmp_path_factory.mktemp("words")
    found = {}
    for prefix, count in (("", 100), ("valid_", 20)):
        rows = ["".join(rng.choices("abcde", k=rng.randrange(2, 6))) for _ in range(count)]
        for side, texts in (("source", rows), ("target", [row[::-1] for row in rows])):
            found[prefix + side] = str(folder / f"{prefix}{side}.txt")
            Path(found[prefix + side]).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return found


def train(family: str, out: Path, words: dict[str, str], model: dict[str, Any] | None = None, **more: Any):
    settings = {"model": {**TINY, **(model or {})}, "train": {**TRAIN, **more.pop("train", {})}}
    more.setdefault("steps", 4)
    return chainrule.train(family, **words, out=out, threads=1, settings=settings, **more)


@pytest.fixture(scope="module")
def teacher(words: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train("transformer", tmp_path_factory.mktemp("teacher") / "run", words).path


@pytest.mark.parametrize(
    ("family", "model"),
    [
        ("nonautoregressive", {"output": "ctc"}),
        ("nonautoregressive", {"output": "masked"}),
        ("hybrid_regressive", {"chunk_size": 3}),
    ],
)
def test_a_parallel_run_is_trained_validated_loaded_and_scored(
    words: dict[str, str], tmp_path: Path, family: str, model: dict[str, Any]
) -> None:
    run = train(family, tmp_path / "run", words, model)
    again = chainrule.load(run.path)
    about = again.info()
    assert about["family"] == family
    validation = about["validation"]
    assert validation["protocol"]["method"] == "whole"
    assert validation["accuracy"] is None
    assert 0 < validation["nats_per_token"] < 50
    assert "bleu" in about
    [[one]] = again.translate("abc")
    assert math.isfinite(one.log_prob)
    found = again.score("cba", source="abc")
    assert found.tokens == 4
    assert (run.path / "card.md").read_text().count("nats/token") == 1
    with pytest.raises(DecodingError, match="does not predict a next one"):
        again.token_scores("cba", source="abc")


def test_a_parallel_run_is_resumed(words: dict[str, str], tmp_path: Path) -> None:
    whole = train("nonautoregressive", tmp_path / "whole", words, steps=6, train={"schedule": "constant", "warmup": 0})
    train("nonautoregressive", tmp_path / "halves", words, steps=3, train={"schedule": "constant", "warmup": 0})
    halves = chainrule.train("nonautoregressive", out=tmp_path / "halves", steps=6, resume=True)
    states = [run.folder.last_state() for run in (whole, halves)]
    assert all((one == other).all() for one, other in zip(*(state.tensors.values() for state in states), strict=True))


def test_noise_objectives_are_refused_before_anything_is_written(words: dict[str, str], tmp_path: Path) -> None:
    settings = {"objective": "nce", "label_smoothing": 0.0}
    with pytest.raises(ConfigError, match="has its own objective"):
        train("nonautoregressive", tmp_path / "run", words, train=settings)
    assert not (tmp_path / "run").exists()


# Distillation


class Listener(Reporter):
    def __init__(self) -> None:
        self.stages: list[tuple[str, int, int]] = []

    def preparing(self, stage: str, done: int, total: int) -> None:
        self.stages.append((stage, done, total))


def prepared(words: dict[str, str], teacher: Path | None = None):
    data = {"train": words["target"], "source": words["source"]}
    config = DataConfig(**data, valid=words["valid_target"], valid_source=words["valid_source"])
    rewrite = None if teacher is None else lambda pairs: distilled(pairs, str(teacher), device="cpu")
    return prepare_pairs(config, "chars", rewrite=rewrite)


def texts(corpus, tokenizer) -> list[str]:
    return [tokenizer.decode(ids[:-1].tolist()) for ids in corpus.documents()]


def test_training_targets_are_translations_of_the_teacher(words: dict[str, str], teacher: Path) -> None:
    plain, taught = prepared(words), prepared(words, teacher)
    run, tokenizer = chainrule.load(teacher, device="cpu"), taught.tokenizers.target
    for own, other in ((plain.train, taught.train), (plain.valid, taught.monitored)):
        sources = texts(own.source, tokenizer)
        assert texts(other.source, tokenizer) == sources
        expected = [best.text.strip() for best, *_ in run.translate(sources)]
        originals = texts(own.target, tokenizer)
        found = texts(other.target, tokenizer)
        assert found == [new or old for new, old in zip(expected, originals, strict=True)]
        assert found != originals
    assert texts(taught.valid.target, tokenizer) == texts(plain.valid.target, tokenizer)  # scores are computed on these
    assert tokenizer.to_json() == plain.tokenizers.target.to_json()


def test_translations_of_the_teacher_are_cached(
    words: dict[str, str], teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(words, teacher)

    def refuse(*args: object, **settings: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr("chainrule.tasks.distillation.TranslationRun.translate", refuse)
    again = prepared(words, teacher)
    assert texts(again.train.target, again.tokenizers.target) == texts(first.train.target, first.tokenizers.target)
    weights = teacher / "model.safetensors"
    kept = weights.read_bytes()
    try:
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        with pytest.raises(AssertionError, match="asked again"):
            prepared(words, teacher)
    finally:
        weights.write_bytes(kept)


def test_a_teacher_that_does_not_translate_is_refused(words: dict[str, str], tmp_path: Path, text_file: Path) -> None:
    ngram = chainrule.train("ngram", data=str(text_file), out=tmp_path / "ngram").path
    for wrong, message in ((ngram, "give a run that translates"), (tmp_path / "nowhere", "no run at")):
        with pytest.raises(RunError, match=message):
            train("nonautoregressive", tmp_path / "run", words, distil_from=wrong)
    with pytest.raises(ConfigError, match=r"is not a translation model, but data.distil_from is set"):
        chainrule.train("ngram", data=str(text_file), out=tmp_path / "other", distil_from=ngram)


def test_distillation_from_the_command_line(
    chainrule: Command, words: dict[str, str], teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    sides = [part for name, path in words.items() for part in (f"--{name.replace('_', '-')}", path)]
    sizes = [f"--set=model.{name}={value}" for name, value in {**TINY, "output": "masked"}.items()]
    outcome = chainrule(
        "train", "nonautoregressive", *sides, *sizes, "--distil-from", teacher, "--steps", 3, "--threads", 1,
        "--out", out,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert f"distilled from: {teacher}" in (out / "card.md").read_text()

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nde\n"), encoding="utf-8"))
    outcome = chainrule("translate", out, "--passes", 2, "--length-candidates", 2)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 3

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n"), encoding="utf-8"))
    assert "this model is autoregressive" in chainrule("translate", teacher, "--passes", 2).err

    pytest.importorskip("sacrebleu")
    files = ("--source", words["valid_source"], "--references", words["valid_target"])
    score = ("score", out, "--task", "translation", *files)
    found = json.loads(chainrule(*score, "--json").out)
    assert found["sentences"] == 20
    assert found["nats_per_token"] > 0
    assert "passes 1, lengths 2" in chainrule(*score, "--passes", 1, "--length-candidates", 2).out
    assert "in a few" in chainrule("models").out
