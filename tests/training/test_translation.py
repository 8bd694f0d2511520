"""Training on pairs of a toy language, whose translation reverses every word."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule
from chainrule.config import TrainConfig
from chainrule.errors import ConfigError, DataError, MissingExtra, RunError
from chainrule.tasks import load
from chainrule.tasks.text import TextRun
from chainrule.tasks.translation import TranslationRun
from chainrule.training.loop import Trainer
from chainrule.training.progress import Reporter
from chainrule.training.schedule import rate
from chainrule.types import Batch, Sequences
from tests.conftest import Command

MODEL = {"width": 48, "layers": 1, "dropout": 0.0}
TRAIN = {"batch_tokens": 256, "learning_rate": 0.01, "label_smoothing": 0.0, "validate_tokens": 500}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Four files: words and their reversals."""
    rng = random.Random(1)
    folder = tmp_path_factory.mktemp("words")
    found = {}
    for prefix, count in (("", 1200), ("valid_", 60)):
        rows = ["".join(rng.choices("abcde", k=rng.randrange(2, 6))) for _ in range(count)]
        for side, texts in (("source", rows), ("target", [row[::-1] for row in rows])):
            found[prefix + side] = str(folder / f"{prefix}{side}.txt")
            Path(found[prefix + side]).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return found


def train(out: Path, words: dict[str, str], *, resume: bool = False, **more: Any) -> chainrule.Run:
    settings = {"model": MODEL, "train": {**TRAIN, **more.pop("train", {})}}
    more.setdefault("steps", 20)
    return chainrule.train("seq2seq", **words, out=out, threads=1, settings=settings, resume=resume, **more)


class Listener(Reporter):
    """Records the notes to the user."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def records(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]


def test_a_toy_language_is_learned_from_two_files(words: dict[str, str], tmp_path: Path) -> None:
    run = train(tmp_path / "run", words, steps=400, train={"schedule": "noam", "warmup": 0.1})
    validations = [record for record in records(run.path) if "valid_bleu" in record]
    assert validations[-1]["valid_exact_match"] > 0.8 > validations[0]["valid_exact_match"]
    assert validations[-1]["valid_chrf"] > 80
    assert "tok:13a" in validations[-1]["bleu_signature"]
    assert validations[-1]["valid_nats_per_token"] < 0.2

    again = chainrule.load(run.path)
    assert again.source_tokenizer is not None
    sources = again.encode_source(["ab", "", "abcde"])
    assert sources.lengths.tolist() == [3, 1, 6]
    assert sources.ids[:, 0].tolist()[1] == 0
    assert again.tokenizer.decode(sources.ids[0, :2].tolist()) == "ab"  # one vocabulary for both sides

    right, wrong = (again.score("dcba", source=source).nats_per_token for source in ("abcd", "bacd"))
    assert right < 1.0 < wrong
    by_file = again.score(data=words["valid_target"], source=words["valid_source"])
    assert by_file.protocol.source
    assert by_file.nats_per_token == pytest.approx(again.info()["validation"]["nats_per_token"], rel=1e-5)


def test_the_score_of_a_corpus_is_the_mean_over_its_pairs(words: dict[str, str], tmp_path: Path) -> None:
    run = train(tmp_path / "run", words, steps=5)
    sources, targets = (Path(words[f"valid_{side}"]).read_text().splitlines() for side in ("source", "target"))
    total, count = 0.0, 0
    for source, target in zip(sources, targets, strict=True):
        ids = torch.tensor([[*run.tokenizer.encode(target), run.tokenizer.eos]])
        total -= run.model.log_prob(Batch(Sequences.full(ids), run.encode_source([source]))).item()
        count += ids.numel()
    found = run.score(data=words["valid_target"], source=words["valid_source"])
    assert found.nats_per_token == pytest.approx(total / count, rel=1e-5)
    assert found.tokens == count


def test_a_source_longer_than_the_context_is_truncated(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{'ab' * length}\t{'ba' * length}\n" for length in range(1, 30)))
    settings = {"model": {"width": 8, "heads": 2, "context": 24, "encoder_layers": 1, "decoder_layers": 1}}
    listener = Listener()
    run = chainrule.train(
        "transformer", data=str(pairs), out=tmp_path / "run", steps=2, settings=settings, reporter=listener
    )
    assert run.score(data=str(pairs)).tokens == sum(2 * length + 1 for length in range(1, 30))
    assert run.info()["validation"]["protocol"]["source_context"] == 24
    assert any("of 26 training pairs are longer than the model's context" in note for note in listener.notes)


def test_a_resumed_run_with_checkpoint_averaging_equals_the_uninterrupted_one(
    words: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"average_checkpoints": 3, "validate_every": 4, "save_every": 5, "log_every": 5}
    whole = train(tmp_path / "whole", words, steps=20, train=settings)

    class Killed(BaseException):
        pass

    step = Trainer._step

    def dying(trainer: Any) -> None:
        if trainer.at.step == 13:
            raise Killed
        step(trainer)

    monkeypatch.setattr(Trainer, "_step", dying)
    with pytest.raises(Killed):
        train(tmp_path / "killed", words, steps=20, train=settings)
    monkeypatch.setattr(Trainer, "_step", step)
    resumed = train(tmp_path / "killed", words, steps=20, train=settings, resume=True)
    for file in ("model.safetensors", "state/step-000000020-end/tensors.safetensors"):
        assert (resumed.path / file).read_bytes() == (whole.path / file).read_bytes()
    assert records(resumed.path) == records(whole.path)


def test_averaged_checkpoints_are_kept_if_they_are_better(words: dict[str, str], tmp_path: Path) -> None:
    settings = {"average_checkpoints": 4, "validate_every": 5, "schedule": "constant", "learning_rate": 0.03}
    run = train(tmp_path / "run", words, steps=60, train=settings)
    validations = [record for record in records(run.path) if "averaged" in record]
    best = min(validations, key=lambda record: record["valid_nats_per_token"])
    assert {record["averaged"] for record in validations} <= {1, 2, 3, 4}
    assert best["averaged"] > 1
    assert run.outcome is not None
    assert run.outcome.best_step == best["step"]
    last = chainrule.load(run.path, checkpoint="last").score(data=words["valid_target"], source=words["valid_source"])
    assert run.info()["validation"]["nats_per_token"] < last.nats_per_token


def test_noam_falls_with_the_inverse_square_root() -> None:
    config = TrainConfig(schedule="noam", warmup=0.04)
    assert rate(config, 0.02) == pytest.approx(0.5)
    assert rate(config, 0.04) == pytest.approx(1.0)
    assert rate(config, 0.16) == pytest.approx(0.5)
    assert rate(config, 1.0) == pytest.approx(math.sqrt(0.04))
    with pytest.raises(ConfigError, match="warmup is 0"):
        TrainConfig.parse({"schedule": "noam", "warmup": 0})


def test_two_kinds_of_weight_averaging_are_refused() -> None:
    with pytest.raises(ConfigError, match="average_checkpoints 3 are both given"):
        TrainConfig.parse({"ema": 0.9, "average_checkpoints": 3})


# The run folder


def test_the_run_folder_contains_both_vocabularies_and_the_cleaning_report(
    words: dict[str, str], tmp_path: Path
) -> None:
    source, target = tmp_path / "dirty.en", tmp_path / "dirty.zh"
    source.write_text(Path(words["source"]).read_text() + "abc\n\n", encoding="utf-8")
    target.write_text(Path(words["target"]).read_text() + "\n你好\n", encoding="utf-8")
    dirty = {**words, "source": str(source), "target": str(target)}
    listener = Listener()
    run = train(tmp_path / "run", dirty, steps=2, source_tokenizer="bytes", tokenizer="chars", reporter=listener)
    assert any("1,202 pairs read" in note and "2 with an empty side" in note for note in listener.notes)
    assert (run.path / "source_tokenizer.json").is_file()
    report = json.loads((run.path / "cleaning.json").read_text())
    assert report["training"]["dropped"]["an empty side"] == 2
    card = (run.path / "card.md").read_text()
    assert "dropped: 2 with an empty side" in card
    assert "source vocabulary: 257 (bytes)" in card
    again = chainrule.load(run.path)
    assert again.source_tokenizer is not None
    assert again.source_tokenizer.kind == "bytes"
    assert again.config.data.target_language == "zh"
    assert "tok:zh" in records(run.path)[-1]["bleu_signature"]


def test_bleu_can_be_disabled(words: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(tmp_path / "run", words, steps=2, train={"validate_bleu": False})
    assert not any("valid_bleu" in record for record in records(run.path))
    monkeypatch.setattr("chainrule.tasks.translation.find_spec", lambda name: None)
    run = train(tmp_path / "without", words, steps=2)
    assert not any("valid_bleu" in record for record in records(run.path))
    with pytest.raises(MissingExtra, match=r"chainrule\[translation\]"):
        train(tmp_path / "asked", words, steps=2, train={"validate_bleu": True})


def test_shared_embeddings_need_a_shared_vocabulary(words: dict[str, str], tmp_path: Path) -> None:
    shared = {"model": {**MODEL, "shared_embeddings": True}, "data": {"separate_vocabularies": True}}
    with pytest.raises(ConfigError, match="needs one vocabulary"):
        chainrule.train("seq2seq", **words, tokenizer="bpe:270", out=tmp_path / "run", steps=1, settings=shared)


# What is refused


def test_data_of_another_task_is_refused(words: dict[str, str], text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gpt is not a translation model, but data.source is set"):
        chainrule.train("gpt", **words, out=tmp_path / "run", steps=1)
    with pytest.raises(DataError, match=r"builtin:dates contains pairs"):
        chainrule.train("gpt", data="builtin:dates", out=tmp_path / "run", steps=1)
    with pytest.raises(DataError, match=r"line 1 of .* no column 2"):
        chainrule.train("seq2seq", data=str(text_file), out=tmp_path / "run", steps=1)
    with pytest.raises(ConfigError, match=r"name pairs with --source and --target"):
        chainrule.train("seq2seq", out=tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"source": "a"}, "--source is given without --target"),
        ({"target": "a"}, "--target is given without --source"),
        ({"source": "a", "target": "b", "data": "c"}, "--target and --data are both given"),
        ({"data": "c", "valid_source": "a"}, "--valid-source is given without --valid-target"),
        ({"data": "c", "valid": "b", "valid_source": "a", "valid_target": "d"}, "--valid-target and --valid are both"),
        ({"data": "c", "test_target": "a"}, "--test-target is given without --test-source"),
    ],
)
def test_a_source_without_a_target_is_refused(given: dict[str, str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        chainrule.train("seq2seq", **given, out=tmp_path / "run", steps=1)


def test_a_run_refuses_verbs_of_other_tasks(words: dict[str, str], text_file: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", words, steps=1)
    with pytest.raises(
        RunError, match=r"is a seq2seq, which translates .chainrule translate .*; give a run that generates text"
    ):
        load(run.path, TextRun)
    with pytest.raises(ConfigError, match="give the source of the text"):
        run.score("abc")
    text = chainrule.train("ngram", data=str(text_file), out=tmp_path / "ngram")
    with pytest.raises(ConfigError, match="takes no source"):
        text.score("abc", source="cba")
    with pytest.raises(
        RunError, match=r"is a ngram, which generates text .chainrule generate .*; give a run that translates"
    ):
        load(text.path, TranslationRun)


def test_translation_is_trained_from_the_command_line(
    chainrule: Command, words: dict[str, str], tmp_path: Path
) -> None:
    flags = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
    flags += ["--test-source", words["valid_source"], "--test-target", words["valid_target"]]
    flags += [f"--set=model.{name}={value}" for name, value in MODEL.items()]
    run = tmp_path / "run"
    flags += ["--tokenizer", "words:50", "--source-tokenizer", "chars"]
    outcome = chainrule("train", "seq2seq", *flags, "--steps", 3, "--out", run)
    assert outcome.code == 0, outcome.err
    assert f"next: chainrule translate {run}" in outcome.out
    assert "given the source" in outcome.out
    assert "valid bleu" in outcome.out
    about = json.loads(chainrule("info", run, "--json").out)
    assert about["source_tokenizer"] == "chars"
    assert about["test"]["data"] == f"{words['valid_source']} and {words['valid_target']}"
    uneven = ("--source", words["source"], "--target", words["valid_target"])
    failed = chainrule("train", "seq2seq", *uneven, "--out", tmp_path / "other")
    assert failed.code == 2
    assert "has 1,200 lines" in failed.err.replace("\n", "")
    assert "has 60 lines" in failed.err.replace("\n", "")
