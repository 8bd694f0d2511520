"""A large text is encoded in pieces and shards; its tokens are those of the whole text, whatever the tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainrule.config import DataConfig
from chainrule.data import seams, source, text, token_files
from chainrule.data.corpus import Corpus
from chainrule.data.splits import Part
from chainrule.data.text import open_source
from chainrule.data.workers import local_workers
from chainrule.tokenizers import TOKENIZERS, Tokenizer, train_tokenizer
from chainrule.tokenizers.base import Ids
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.sentencepiece import SentencePiece

LINES = [
    "the cat sat on the mat",
    "  an indented line",
    "\ttabs",
    "",
    "",
    "a full stop .",
    "ends with a space ",
    "punctuation!?",
    "(brackets)",
    "我们在北京学习。",
    "naïve — café",
    " one space first",
    "x",
]
SPECS = ["chars", "bytes", "words", "words:20", "words:lower", "bpe:400", "unigram:400", "sentencepiece:400",
         "sentencepiece:char", "sentencepiece:FILE", "jieba", "huggingface:gpt2", "huggingface:bert"]  # fmt: skip
OTHERS = ["prefix", "prefix, newline as space", "metaspace", "prepend", "newlines after marks"]


def lines(seed: int, count: int) -> str:
    choose = random.Random(seed)
    return "\n".join(choose.choice(LINES) for _ in range(count))


def sentencepiece_model(**options: Any) -> Tokenizer:
    """A SentencePiece model that puts a space before every text."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines(0, 400).split("\n")), model_writer=model, vocab_size=400, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, add_dummy_prefix=True, remove_extra_whitespaces=False, byte_fallback=True,
        **options,
    )  # fmt: skip
    return SentencePiece(model.getvalue())


def library_tokenizer(name: str) -> Tokenizer:
    """Tokenizers of Hugging Face's library: Llama's two ways to add a space, and GPT-4's pattern."""
    import json

    from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(byte_fallback=name == "prepend"))
    alphabet = []
    if name == "metaspace":
        library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    elif name == "prepend":
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        pattern = r" ?\p{L}+| ?[^\s\p{L}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False, max_token_length=8
    )
    library.train_from_iterator([line + "\n" for line in lines(0, 400).split("\n")], trainer)
    return HuggingFace(json.loads(library.to_str()), 0)


def other(name: str) -> Tokenizer:
    if name == "prefix":
        return sentencepiece_model(normalization_rule_name="identity", user_defined_symbols=["\n"])
    if name.startswith("prefix"):
        return sentencepiece_model(normalization_rule_name="nmt_nfkc")
    return library_tokenizer(name)


@pytest.fixture(params=[*SPECS, *OTHERS])
def tokenizer(request: pytest.FixtureRequest, foreign: dict[str, str]) -> Tokenizer:
    if request.param in OTHERS:
        return other(request.param)
    if request.param == "jieba":
        pytest.importorskip("jieba")
    spec = foreign.get(request.param, request.param)
    return train_tokenizer(spec, lambda: [lines(0, 400), "\n\n\n", "\n\n x"] * 3)


def test_every_kind_is_compared() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(TOKENIZERS)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(source, "cut", partial(source.cut, size=150, longest=600))
    monkeypatch.setattr(text, "SHARD", 900)
    with local_workers(1):  # in this process, where pieces are small
        yield


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(3))
def test_tokens_of_shards_are_those_of_the_whole_text(tmp_path: Path, tokenizer: Tokenizer, seed: int) -> None:
    whole = lines(seed, 600)
    file = tmp_path / "text.txt"
    file.write_text(whole, encoding="utf-8")
    opened = open_source(str(file), DataConfig(train=str(file), unit="stream"))
    assert len(opened.shards()) > 5
    found = Corpus.build(opened, tokenizer, cache=tmp_path / "cache")
    expected = tokenizer.encode(whole)
    assert found.tokens.tolist() == expected.tolist()
    assert found.unknown == np.count_nonzero(expected == tokenizer.unknown)
    part = Part.of(100, len(whole) - 2000)
    found = Corpus.build(opened, tokenizer, part, cache=tmp_path / "cache")
    assert found.tokens.tolist() == tokenizer.encode(whole[100 : len(whole) - 2000]).tolist()


def test_a_text_that_is_one_shard_is_encoded_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    monkeypatch.setattr(text, "SHARD", 1 << 20)
    tokenizer = other("prefix")
    file = tmp_path / "text.txt"
    file.write_text(lines(7, 600), encoding="utf-8")
    found = Corpus.build(
        open_source(str(file), DataConfig(train=str(file), unit="stream")), tokenizer, cache=tmp_path / "cache"
    )
    assert found.tokens.tolist() == tokenizer.encode(lines(7, 600)).tolist()


class Distant(Bytes):
    """Each token depends on the length of the text."""

    def _encode(self, text: str) -> Ids:
        return (super()._encode(text) + np.int32(len(text))) % np.int32(self.vocabulary)


def test_tokens_that_depend_on_distant_text_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    for module in (seams, token_files):
        monkeypatch.setattr(module, "CONTEXT", 20)
    file = tmp_path / "text.txt"
    file.write_text(lines(7, 600), encoding="utf-8")
    opened = open_source(str(file), DataConfig(train=str(file), unit="stream"))
    found = Corpus.build(opened, Distant(), cache=tmp_path / "cache")
    pieces = [Distant().encode(piece) for shard in opened.shards() for piece in shard.pieces()]
    assert found.tokens.tolist() == np.concatenate(pieces).tolist()
