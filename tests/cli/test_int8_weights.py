"""`--weights int8` and `--draft int8`: faster steps for a small loss, or for none."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

import chainrule as package
from tests.cli.test_bad_input import refused
from tests.conftest import Command

SMALL = {"model": {"layers": 2, "width": 32, "heads": 2, "context": 64}}
PAIRS = {"model": {"encoder_layers": 1, "decoder_layers": 1, "width": 32, "heads": 2}, "tokenizer": "words"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 60)
    package.train("gpt", data=str(folder / "text.txt"), out=folder / "gpt", steps=20, settings=SMALL, progress=False)
    package.train("ngram", data=str(folder / "text.txt"), out=folder / "ngram", progress=False)
    pairs = "a b c\tx y z\nc b a\tz y x\na c\tx z\nb\ty\n" * 20
    (folder / "pairs.tsv").write_text(pairs)
    package.train(
        "transformer", data=str(folder / "pairs.tsv"), out=folder / "pairs", steps=20, settings=PAIRS, progress=False
    )
    return folder


def test_the_loss_of_int8_weights_is_printed_and_measured_once(chainrule: Command, runs: Path) -> None:
    words = ("generate", runs / "gpt", "--length", 20, "--greedy", "--weights", "int8")
    first, second = chainrule(*words), chainrule(*words)
    assert first.code == second.code == 0, first.err
    assert "bits/byte (float32: " in first.err
    assert first.out == second.out
    [stored] = [json.loads(line) for line in (runs / "gpt" / "int8.jsonl").read_text().splitlines()]
    assert stored["int8"]["bits_per_byte"] == pytest.approx(stored["float32"]["bits_per_byte"], rel=0.02)
    assert stored["int8"] != stored["float32"]


@pytest.mark.parametrize("sampling", [["--greedy"], ["--temperature", "0.9"]])
def test_a_draft_with_int8_weights_leaves_the_text_unchanged(
    chainrule: Command, runs: Path, sampling: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chainrule.decoding.block_size import FixedBlockSize

    words = ("generate", runs / "gpt", "--length", 120, "--num", 3, *sampling)
    plain = chainrule(*words)
    monkeypatch.setattr("chainrule.decoding.generation.BlockSize", lambda: FixedBlockSize(6))
    drafted = chainrule(*words, "--draft", "int8")
    assert drafted.code == 0, drafted.err
    assert drafted.out == plain.out


def test_a_translation_by_int8_weights_says_what_it_costs_in_bleu(
    chainrule: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sacrebleu")
    found = {}
    for words in ((), ("--weights", "int8"), ("--draft", "int8")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b c\nc\n"), encoding="utf-8"))
        found[words] = chainrule("translate", runs / "pairs", "--beam", 1, *words)
        assert found[words].code == 0, found[words].err
    assert "BLEU (float32: " in found["--weights", "int8"].err
    assert found["--draft", "int8"].out == found[()].out


def test_a_model_without_matrices_has_no_int8_weights(chainrule: Command, runs: Path) -> None:
    refused(chainrule("generate", runs / "ngram", "--weights", "int8"), "no compiled decoding step")
    refused(chainrule("generate", runs / "gpt", "--weights", "int4"), "give float32 or int8")
