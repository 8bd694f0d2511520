"""Features of a pretrained model for the tokens of another tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chainrule.features import Pretrained
from chainrule.features.pooling import TokenAligner
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.types import Sequences
from tests.features.folders import write_bert, write_small_gpt2

TEXT = "cat  sat dog"


def characters() -> Tokenizer:
    return Chars.train(None, lambda: iter([TEXT]))


@pytest.fixture(params=[write_bert, write_small_gpt2])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    request.param(tmp_path)
    return tmp_path


def test_a_token_overlaps_the_pieces_that_share_a_character_with_it(folder: Path) -> None:
    other = characters()
    aligner = TokenAligner(HuggingFace.read(folder / "tokenizer.json"), other)
    ids = [other.vocabulary, *other.encode(TEXT).tolist(), other.eos]  # BOS, the text, EOS
    found = aligner.align(tuple(ids))
    assert len(found.pieces) == 3
    positions = [list(overlap) for overlap in found.overlaps]
    assert positions == [[0], [1], [1], [1], [1], [1], [2], [2], [2], [2], [3], [3], [3], [3]]


@torch.no_grad()
def test_the_vector_of_a_character_is_that_of_its_word(folder: Path) -> None:
    own, other = Pretrained.open(folder), characters()
    pieces = Sequences.full(torch.tensor([own.tokenizer.encode(TEXT).tolist()]))
    words = own(pieces)[0]
    own.use_tokenizer(other)
    found = own(Sequences.full(torch.tensor([other.encode(TEXT).tolist()])))[0]
    expected = words[[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]]
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_rows_do_not_depend_on_each_other_and_long_texts_are_read_in_parts(folder: Path) -> None:
    model, other = Pretrained.open(folder), characters()
    model.use_tokenizer(other)
    long = other.encode(" ".join(["cat"] * 20)).tolist()  # more words than the model has positions
    short = other.encode("dog").tolist()
    both = model(Sequences.pack([long, short]))
    torch.testing.assert_close(both[:1], model(Sequences.pack([long])))
    torch.testing.assert_close(both[1:, : len(short)], model(Sequences.pack([short])))
    assert model.context is None


def test_its_own_tokenizer_needs_no_pooling(folder: Path) -> None:
    model = Pretrained.open(folder)
    model.use_tokenizer(HuggingFace.read(folder / "tokenizer.json"))
    assert model.aligner is None
    assert model.context == 15
