"""elmo, bert and t5: training, embedding and filling gaps."""

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from chainrule.training.learner import Loss, WholeSequences, WholeTargets
from chainrule.types import Batch
from tests.conftest import Command, Outcome

SMALL = {
    "elmo": ["model.width=8", "model.layers=1", "train.segment=16"],
    "bert": ["model.width=8", "model.layers=1", "model.heads=2", "model.context=16"],
    "t5": ["model.width=8", "model.heads=2", "model.encoder_layers=1", "model.decoder_layers=1", "model.context=20"],
}


def train(chainrule: Command, family: str, data: Path, out: Path, *words: object) -> Outcome:
    settings = [*SMALL[family], "train.batch_tokens=64", "train.validate_tokens=64", "train.validate_every=2"]
    chosen = [part for setting in settings for part in ("--set", setting)]
    outcome = chainrule("train", family, "--data", data, "--tokenizer", "words", "--out", out, *chosen, *words)
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"the cat sat on the mat\n\nthe dog " + b"sat on the log " * 20 + b"\nthe cat sat on the mat\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize("family", SMALL)
def test_training_reports_the_validation_loss(family: str, text_file: Path, tmp_path: Path, chainrule: Command) -> None:
    outcome = train(chainrule, family, text_file, tmp_path / "run", "--steps", 2)
    assert "validation: the last 0.1 of" in outcome.out
    assert "nats/token" in outcome.out
    about = json.loads(chainrule("info", tmp_path / "run", "--json").out)
    assert about["family"] == family
    assert 0 < about["validation"]["nats_per_token"] < 10
    validations = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    measured = [record for record in validations if "valid_nats_per_token" in record]
    assert measured
    # Bits per byte are said of a text, or of what is hidden in it; a loss of hidden words alone has none.
    assert all(("valid_bits_per_byte" in record) == (family == "t5") for record in measured)


@pytest.mark.parametrize("family", SMALL)
def test_a_resumed_run_equals_an_uninterrupted_one(
    family: str, text_file: Path, tmp_path: Path, chainrule: Command
) -> None:
    schedule = ("--set", "train.schedule=constant", "--set", "train.warmup=0")
    train(chainrule, family, text_file, tmp_path / "whole", "--steps", 4, *schedule)
    train(chainrule, family, text_file, tmp_path / "halves", "--steps", 2, *schedule)
    train(chainrule, family, text_file, tmp_path / "halves", "--steps", 4, *schedule, "--resume")
    whole, halves = (
        load_file(next((tmp_path / name / "state").iterdir()) / "tensors.safetensors") for name in ("whole", "halves")
    )
    assert all((whole[name] == halves[name]).all() for name in whole)


@pytest.mark.parametrize("family", SMALL)
def test_no_row_of_a_batch_crosses_the_end_of_a_document(
    family: str, tmp_path: Path, chainrule: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve documents of three tokens, EOS included: each is a row by itself, where a stream fills its rows."""
    lines = tmp_path / "lines.txt"
    lines.write_text("a b\n" * 12)
    lengths: dict[str, set[int]] = {"documents": set(), "stream": set()}

    def recording(gradient: Callable[..., Loss]) -> Callable[..., Loss]:
        def record(learner: Any, batch: Batch, **options: Any) -> Loss:
            lengths[unit].update((batch.source or batch.target).lengths.tolist())
            return gradient(learner, batch, **options)

        return record

    for learner in (WholeSequences, WholeTargets):
        monkeypatch.setattr(learner, "gradient", recording(learner.gradient))
    for unit in ("documents", "stream"):
        train(chainrule, family, lines, tmp_path / unit, "--steps", 2, "--set", f"data.unit={unit}")
    assert max(lengths["documents"]) <= 4 < min(lengths["stream"])


@pytest.mark.parametrize("family", SMALL)
def test_embed_gives_one_vector_per_line(
    family: str, text_file: Path, tmp_path: Path, chainrule: Command, lines: None
) -> None:
    train(chainrule, family, text_file, tmp_path / "run", "--steps", 1)
    outcome = chainrule("embed", tmp_path / "run", "--out", tmp_path / "vectors.npz")
    assert outcome.code == 0, outcome.err
    vectors = np.load(tmp_path / "vectors.npz")["vectors"]
    assert vectors.shape == (4, 16 if family == "elmo" else 8)
    assert np.array_equal(vectors[0], vectors[3])
    assert vectors[0].any()
    assert not vectors[1].any()
    assert np.isfinite(vectors).all()  # the third line is longer than the context


def test_the_mean_of_the_token_vectors_is_that_of_the_line(
    text_file: Path, tmp_path: Path, chainrule: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(chainrule, "bert", text_file, tmp_path / "run", "--steps", 1)
    found = {}
    for name, words in {"means": (), "tokens": ("--per-token",), "first": ("--per-token", "--layer", 0)}.items():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat sat\n\na bird\n")))
        assert chainrule("embed", tmp_path / "run", "--out", tmp_path / f"{name}.npz", *words).code == 0
        found[name] = np.load(tmp_path / f"{name}.npz")
    assert found["tokens"]["offsets"].tolist() == [0, 3, 3, 5]
    assert [str(token).strip() for token in found["tokens"]["tokens"]] == ["the", "cat", "sat", "a", "bird"]
    assert np.allclose(found["means"]["vectors"][0], found["tokens"]["vectors"][:3].mean(0), atol=1e-6)
    assert found["first"]["vectors"].shape == found["tokens"]["vectors"].shape
    assert not np.allclose(found["first"]["vectors"], found["tokens"]["vectors"])


@pytest.mark.parametrize(("family", "longest"), [("bert", 1), ("t5", 3)])
def test_fillings_are_sorted_by_probability(
    family: str, longest: int, text_file: Path, tmp_path: Path, chainrule: Command
) -> None:
    train(chainrule, family, text_file, tmp_path / "run", "--steps", 2)
    words = ("--text", "the cat <> on the <> .", "--n-best", 3, *(("--longest", longest) if family == "t5" else ()))
    found = json.loads(chainrule("fill", tmp_path / "run", *words, "--json").out)
    assert len(found) == 3
    assert [one["probability"] for one in found] == sorted((one["probability"] for one in found), reverse=True)
    for one in found:
        assert one["probability"] == pytest.approx(math.exp(one["log_prob"]))
        assert len(one["gaps"]) == 2
        assert all(len(gap.split()) <= longest for gap in one["gaps"])
        assert one["text"].startswith("the cat")
    shown = chainrule("fill", tmp_path / "run", *words)
    assert shown.code == 0
    title, *rows = shown.out.splitlines()
    assert title.split() == ["probability", "gaps", "text"]
    assert [row.split()[0] for row in rows] == [f"{100 * one['probability']:.3g}" for one in found]
    assert all(repr(one["text"])[1:-1] in row for row, one in zip(rows, found, strict=True))


def test_an_unsupported_verb_is_refused_in_one_line(text_file: Path, tmp_path: Path, chainrule: Command) -> None:
    train(chainrule, "elmo", text_file, tmp_path / "elmo", "--steps", 1)
    for words, said in (
        (("fill", tmp_path / "elmo", "--text", "a <> b"), "give a run that fills gaps"),
        (("generate", tmp_path / "elmo"), "give a run that generates text"),
        (("embed", tmp_path / "elmo", "--out", tmp_path / "vectors.txt"), "must end in .npz or .npy"),
        (("export", tmp_path / "elmo", "--to", "hf", "--out", tmp_path / "hf"), "only gpt and bert can be exported"),
        (("train", "t5", "--out", tmp_path / "t5"), "no training data was given; name a file"),
    ):
        outcome = chainrule(*words)
        assert outcome.code == 2
        assert said in outcome.err
        assert "Traceback" not in outcome.err
