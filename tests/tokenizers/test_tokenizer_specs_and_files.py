"""Tokenizer specs and tokenizer files, valid and invalid."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chainrule.errors import TokenizerError, WriteError
from chainrule.tokenizers import TOKENIZERS, Tokenizer, load_tokenizer, train_tokenizer

Trained = Callable[[str], Tokenizer]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("char", "unknown tokenizer 'char'; did you mean 'chars'?"),
        ("sentencepeice:8000", "did you mean 'sentencepiece'?"),
        ("", "choose from: bpe, bytes, chars,"),
        ("chars:100", "'chars' takes no argument, got 'chars:100'"),
        ("bytes:1", "'bytes' takes no argument"),
        ("bpe", "'bpe' needs a vocabulary size; for example bpe:8000"),
        ("unigram:", "'' is not a size; try unigram:8000"),
        ("bpe:8k", "'8k' is not a size; try bpe:8000"),
        ("bpe:-5", "'-5' is not a size"),
        ("words:²", "'²' is not a size"),
        ("bpe:256", "too small; the smallest is bpe:257"),
        ("words:2", "too small; the smallest is words:3"),
        ("jieba:0", "too small"),
        ("sentencepiece:200", "too small; the smallest is sentencepiece:261"),
        ("sentencepiece", "needs a size, 'char' or a file"),
        ("sentencepiece:chars", "there is no SentencePiece model 'chars'"),
        ("huggingface", "needs a file"),
        ("huggingface:nowhere", "there is no file 'nowhere'"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        train_tokenizer(spec, lambda: ["some text"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_table_names_each_class_by_its_kind() -> None:
    assert {kind: tokenizer.kind for kind, tokenizer in TOKENIZERS.items()} == {kind: kind for kind in TOKENIZERS}


def test_a_file_states_its_format_and_kind(trained: Trained, file: Path) -> None:
    trained("words:20").save(str(file))
    content = json.loads(file.read_text(encoding="utf-8"))
    assert (content["format"], content["kind"]) == (1, "words")


def refused(file: Path) -> str:
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(file)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    return message


def test_a_missing_file_is_refused(file: Path) -> None:
    assert "there is no tokenizer file" in refused(file)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path)


@pytest.mark.parametrize("spec", ["chars", "words", "bpe:400", "unigram:400", "sentencepiece:400", "huggingface:gpt2"])
def test_a_truncated_file_is_refused(trained: Trained, spec: str, file: Path) -> None:
    trained(spec).save(file)
    content = file.read_bytes()
    for share in (0, 0.1, 0.5, 0.99):
        file.write_bytes(content[: int(share * len(content))])
        assert "is damaged" in refused(file)


def test_a_file_of_a_newer_version_asks_for_an_upgrade(file: Path) -> None:
    file.write_text('{"format": 2, "kind": "chars", "letters": "ab"}')
    assert refused(file).endswith("has format 2, this version reads up to 1; upgrade chainrule")


def test_a_file_of_hugging_face_is_recognised(file: Path) -> None:
    file.write_text('{"version": "1.0", "model": {}}')
    assert "huggingface:FILE" in refused(file)


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "chars"},
        {"kind": "chars", "characters": "ba"},
        {"kind": "chars", "characters": "aa"},
        {"kind": "chars", "characters": 7},
        {"kind": "chars", "characters": ["a", "bc"]},
        {"kind": "words", "words": ["a", "a"]},
        {"kind": "words", "words": ["a b"]},
        {"kind": "words", "words": [1]},
        {"kind": "jieba", "words": ["a", ""]},
        {"kind": "bpe", "tokenizer": {}},
        {"kind": "bpe", "tokenizer": {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}},
        {"kind": "sentencepiece", "model": "???"},
        {"kind": "sentencepiece", "model": "AAAA"},
        {"kind": "huggingface", "tokenizer": {"model": {}}, "eos": 0},
    ],
)
def test_invalid_values_are_refused(file: Path, content: dict[str, object]) -> None:
    file.write_text(json.dumps({"format": 1, **content}))
    assert "is damaged" in refused(file)


def test_an_unknown_kind_is_refused(file: Path) -> None:
    file.write_text('{"format": 1, "kind": ["runes"]}')
    assert "unknown kind" in refused(file)


def test_a_crash_while_saving_keeps_the_old_file(trained: Trained, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("chars").save(file)
    before = file.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(WriteError, match=r"cannot write .*\.json': the disk is full"):
        trained("words").save(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_saving_below_a_file_is_refused(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=r"cannot write .*tokenizer\.json"):
        trained("chars").save(tmp_path / "file" / "tokenizer.json")
