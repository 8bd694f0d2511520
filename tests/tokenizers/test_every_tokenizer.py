"""Properties of all tokenizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import TokenizerError
from chainrule.tokenizers import TOKENIZERS, Tokenizer, load_tokenizer

Trained = Callable[[str], Tokenizer]

ANY_TEXT_LOSSLESS = ["bytes", "bpe:400", "unigram:400", "sentencepiece:400", "huggingface:gpt2"]
KNOWN_TEXT_LOSSLESS = ["chars", "sentencepiece:char", "jieba", "jieba:100"]
LOSSY = ["words", "words:20", "words:whitespace", "words:lower", "sentencepiece:FILE", "huggingface:bert"]
TRAINED_HERE = ["chars", "bytes", "words", "bpe:400", "unigram:400", "sentencepiece:400", "sentencepiece:char", "jieba"]
SPECS = ANY_TEXT_LOSSLESS + KNOWN_TEXT_LOSSLESS + LOSSY

every_kind = pytest.mark.parametrize("spec", SPECS)

# Everything that UTF-8 can spell, with more than a fair share of what has gone wrong in tokenizers before.
TROUBLE = [
    "\0",
    "\n",
    "\r\n",
    "\t",
    "  ",
    "\u2581",
    "\u2585",
    "\ufffd",
    "\ufeff",
    "\u200d",
    "e\u0301",
    "\x85",
    "😀",
    "<eos>",
]
unicode_text = st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(TROUBLE)).map("".join)


def test_all_kinds_are_covered_here() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(TOKENIZERS)


@pytest.mark.parametrize("spec", ANY_TEXT_LOSSLESS)
@settings(max_examples=150, deadline=None)
@given(text=unicode_text)
def test_byte_tokenizers_restore_any_text(trained: Trained, spec: str, text: str) -> None:
    tokenizer = trained(spec)
    assert tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("spec", KNOWN_TEXT_LOSSLESS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_text_of_known_characters_is_restored(trained: Trained, text: str, spec: str, data: st.DataObject) -> None:
    tokenizer = trained(spec)
    known = data.draw(st.text(sorted(set(text))))
    assert tokenizer.lossless
    assert tokenizer.unknown not in tokenizer.encode(known)
    assert tokenizer.decode(tokenizer.encode(known)) == known


@pytest.mark.parametrize("spec", LOSSY)
def test_lossless_is_declared_truthfully(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    text = "  The cat\t sat "
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode(text)) != text


@every_kind
@settings(max_examples=50, deadline=None)
@given(text=unicode_text)
def test_ids_of_any_text_are_in_the_vocabulary(trained: Trained, spec: str, text: str) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert ((ids >= 0) & (ids < tokenizer.vocabulary)).all()
    assert tokenizer.eos not in ids
    assert isinstance(tokenizer.decode(ids), str)


@every_kind
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_pieces_are_one_per_token_and_join_to_the_text(trained: Trained, spec: str, data: st.DataObject) -> None:
    tokenizer = trained(spec)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1)))
    assert len(tokenizer.pieces(ids)) == len(ids)
    if spec != "huggingface:bert":  # its decoder looks at more than the token before
        assert "".join(tokenizer.pieces(ids)) == tokenizer.decode(ids)


@every_kind
def test_empty_text_is_no_tokens(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.int32
    assert tokenizer.decode([]) == ""
    assert tokenizer.pieces([]) == []


@every_kind
def test_end_of_sequence_decodes_to_nothing(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode("the cat").tolist()
    assert tokenizer.decode([*ids, tokenizer.eos]) == tokenizer.decode(ids)
    assert tokenizer.pieces([*ids, tokenizer.eos])[-1] == ""


@every_kind
def test_unknown_decodes_to_the_replacement_character(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    if tokenizer.unknown is not None:
        assert tokenizer.decode([tokenizer.unknown]) == "\ufffd"


@pytest.mark.parametrize("spec", TRAINED_HERE)
def test_trained_tokenizers_have_eos_first_and_unknown_second(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    assert tokenizer.eos == 0
    assert tokenizer.unknown == (None if spec in ("bytes", "bpe:400", "unigram:400") else 1)


@every_kind
@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(categories=["Cs", "Ll"]), min_size=1))
def test_lone_surrogates_are_read_as_replacement_characters(trained: Trained, spec: str, text: str) -> None:
    tokenizer = trained(spec)
    replaced = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert tokenizer.encode(text).tolist() == tokenizer.encode(replaced).tolist()


@every_kind
@pytest.mark.parametrize("name", ["<eos>", "</s>", "<|endoftext|>", "[SEP]", "[CLS]"])
def test_the_name_of_a_special_token_in_a_text_is_ordinary_text(trained: Trained, spec: str, name: str) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode(f"the {name} cat")
    assert tokenizer.eos not in ids
    if spec in ANY_TEXT_LOSSLESS:
        assert tokenizer.decode(ids) == f"the {name} cat"


@every_kind
@pytest.mark.parametrize("bad", [-1, 10**6])
def test_an_id_outside_the_vocabulary_is_refused(trained: Trained, spec: str, bad: int) -> None:
    tokenizer = trained(spec)
    with pytest.raises(TokenizerError, match=f"token id {bad} is outside the vocabulary of {tokenizer.vocabulary}"):
        tokenizer.decode([bad])


@every_kind
def test_a_saved_tokenizer_is_the_same_when_loaded(trained: Trained, spec: str, text: str, file: Path) -> None:
    tokenizer = trained(spec)
    tokenizer.save(file)
    loaded = load_tokenizer(file)
    assert type(loaded) is type(tokenizer)
    assert loaded.to_json() == tokenizer.to_json()
    assert (loaded.vocabulary, loaded.eos, loaded.unknown) == (tokenizer.vocabulary, tokenizer.eos, tokenizer.unknown)
    assert (loaded.lossless, loaded.note) == (tokenizer.lossless, tokenizer.note)
    for part in (text, "unseen: ő 😀 \u2581"):
        ids = tokenizer.encode(part)
        assert loaded.encode(part).tolist() == ids.tolist()
        assert loaded.decode(ids) == tokenizer.decode(ids)


@every_kind
def test_the_note_is_one_sentence_about_decoding_and_unseen_characters(trained: Trained, spec: str) -> None:
    note = trained(spec).note
    assert "decoding" in note
    assert "unseen" in note
    assert "\n" not in note


TRAIN_ALL = """
import json, sys
from chainrule.tokenizers import train_tokenizer
text, specs = json.load(sys.stdin)
print(json.dumps([train_tokenizer(spec, lambda: [text]).to_json() for spec in specs]))
"""


def test_training_gives_the_same_in_every_process(text: str) -> None:
    """String hashes, and hash tables inside the libraries, differ between processes."""
    specs = [spec for spec in TRAINED_HERE if spec != "jieba"]  # it takes long to start
    varied = text + " ".join(f"{number:x}ing {number * 7919:b}" for number in range(400))  # many ties

    def train(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", TRAIN_ALL],
            input=json.dumps([varied, specs]), env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    assert train("1") == train("2")
