"""BPE, unigram, SentencePiece, and tokenizers loaded from Hugging Face files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import TokenizerError
from chainrule.tokenizers import Tokenizer, train_tokenizer
from chainrule.tokenizers.base import PASSAGE, passages, sample
from chainrule.tokenizers.bytes import ALPHABET, BYTE_OF
from chainrule.tokenizers.sentencepiece import Normalizer, read_normalizer

Trained = Callable[[str], Tokenizer]
learned = pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece"])


@learned
def test_frequent_words_become_one_token(kind: str) -> None:
    prose = "".join(topics.values())[:60_000]  # a repeated sentence is too little text for unigram models
    tokenizer = train_tokenizer(f"{kind}:600", lambda: [prose])
    assert " the" in tokenizer.pieces(tokenizer.encode("on the mat"))
    assert len(tokenizer.encode("the value of the class is an object\n")) < 13


@learned
@pytest.mark.parametrize("size", [300, 350])
def test_the_vocabulary_does_not_exceed_its_size(kind: str, size: int) -> None:
    text = "".join(f"the {number:x}ing of {number:b}\n" for number in range(1000))
    tokenizer = train_tokenizer(f"{kind}:{size}", lambda: [text])
    assert size - 5 <= tokenizer.vocabulary <= size


@learned
def test_a_text_too_small_for_the_size_gives_a_smaller_vocabulary(kind: str) -> None:
    tokenizer = train_tokenizer(f"{kind}:5000", lambda: ["a b\n", "a b"])
    assert tokenizer.vocabulary < 300
    assert tokenizer.decode(tokenizer.encode("a b\n")) == "a b\n"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_256_bytes_and_eos_are_the_smallest_vocabulary(kind: str) -> None:
    tokenizer = train_tokenizer(f"{kind}:257", lambda: [bytes(range(1, 128)).decode() + "the cat é"])
    assert tokenizer.vocabulary == 257
    assert len(tokenizer.encode("cat é")) == 6


@pytest.mark.parametrize("kind", ["bpe", "unigram", "sentencepiece"])
def test_the_name_of_eos_in_the_training_text_is_ordinary_text(kind: str) -> None:
    text = "<eos> <unk> </s> <eos>\n" * 50
    tokenizer = train_tokenizer(f"{kind}:400", lambda: [text])
    ids = tokenizer.encode(text)
    assert tokenizer.eos not in ids
    assert tokenizer.unknown not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("spec", ["bpe:400", "unigram:400", "sentencepiece:400"])
def test_an_unseen_character_is_encoded_as_bytes(trained: Trained, spec: str) -> None:
    tokenizer = trained(spec)
    ids = tokenizer.encode("ő")
    assert len(ids) == 2
    assert tokenizer.pieces(ids) == ["", "ő"]


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert sorted(pre_tokenizers.ByteLevel.alphabet()) == ALPHABET
    for character in map(chr, [*range(0x250), 0x4E2D, 0x1F600]):
        written = split.pre_tokenize_str(character)[0][0]
        assert bytes(BYTE_OF[letter] for letter in written) == character.encode()


@given(st.lists(st.text(st.sampled_from("ab\n"), max_size=3 * 8)), st.integers(1, 40))
def test_passages_cover_the_whole_text_and_samples_an_even_part(texts: list[str], characters: int) -> None:
    text = "".join(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chainrule.tokenizers.base.PASSAGE", 8)
        assert "".join(passages(lambda: texts)) == text
        assert all(0 < len(passage) <= 8 for passage in passages(lambda: texts))
        kept = list(sample(lambda: texts, characters))
        stride = max(1, -(-len(text) // characters))
        assert kept == list(passages(lambda: texts))[::stride]


def test_passages_end_with_a_line_where_they_can() -> None:
    text = ("x" * 99 + "\n") * 100
    *most, _ = passages(lambda: [text])
    assert all(passage.endswith("\n") and len(passage) > PASSAGE - 100 for passage in most)


def test_characters_of_sentencepiece_are_one_token_each(trained: Trained) -> None:
    tokenizer = trained("sentencepiece:char")
    text = "the cat\tsat\n\n  北京"
    assert tokenizer.pieces(tokenizer.encode(text)) == list(text)


def test_characters_that_sentencepiece_reserves_are_unknown_to_it_not_spaces() -> None:
    tokenizer = train_tokenizer("sentencepiece:char", lambda: ["a b\u2581\u2585\0"])
    assert tokenizer.decode(tokenizer.encode("a\u2581b\u2585a\0b")) == "a\ufffdb\ufffda\ufffdb"


def test_every_character_of_a_long_line_is_learned() -> None:
    text = "".join(map(chr, range(0x4E00, 0x9000)))
    tokenizer = train_tokenizer("sentencepiece:char", lambda: [text])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_size_below_the_number_of_characters_is_refused_with_the_right_one() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4F00)))
    with pytest.raises(TokenizerError, match="are too few for its characters; use at least") as caught:
        train_tokenizer("sentencepiece:300", lambda: [text])
    enough = int(str(caught.value).rsplit(" ", 1)[1])
    assert train_tokenizer(f"sentencepiece:{enough}", lambda: [text]).vocabulary <= enough


def test_nothing_but_line_ends_is_refused_by_sentencepiece() -> None:
    with pytest.raises(TokenizerError, match="only line ends"):
        train_tokenizer("sentencepiece:300", lambda: ["\n\n"])


def test_a_sentencepiece_file_keeps_its_ids_and_its_decoding(trained: Trained, foreign: dict[str, str]) -> None:
    import sentencepiece

    path = foreign["sentencepiece:FILE"].partition(":")[2]
    library = sentencepiece.SentencePieceProcessor(model_file=path)
    tokenizer = trained("sentencepiece:FILE")
    assert (tokenizer.vocabulary, tokenizer.eos, tokenizer.unknown) == (library.vocab_size(), 2, 0)
    for text in ("the cat sat", "  The   ｄｏｇ ", "北京", "\u2581"):
        ids = tokenizer.encode(text)
        assert ids.tolist() == library.encode(text)
        if tokenizer.unknown not in ids:
            assert tokenizer.decode(ids) == library.decode(ids.tolist())


def test_the_normaliser_of_a_sentencepiece_model_is_read() -> None:
    import sentencepiece

    def normalizer(**options: object) -> Normalizer:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c"] * 9), model_writer=model, vocab_size=9, hard_vocab_limit=False,
            minloglevel=2, **options,
        )  # fmt: skip
        return read_normalizer(model.getvalue())

    usual = normalizer()
    assert len(usual.rules) > 1000
    assert usual[1:] == (True, True)
    identity = normalizer(normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=True)
    assert identity == Normalizer(rules=b"", adds_prefix=False, drops_spaces=True)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x0a\xff\xff"])
def test_a_file_that_is_no_sentencepiece_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.model").write_bytes(content)
    with pytest.raises(TokenizerError, match="not a valid SentencePiece model"):
        train_tokenizer(f"sentencepiece:{tmp_path / 'bad.model'}", list)


def test_a_sentencepiece_model_without_eos_is_refused(tmp_path: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"] * 9), model_prefix=str(tmp_path / "no_eos"), vocab_size=9,
        hard_vocab_limit=False, eos_id=-1, minloglevel=2,
    )  # fmt: skip
    with pytest.raises(TokenizerError, match="no end-of-sentence piece"):
        train_tokenizer(f"sentencepiece:{tmp_path / 'no_eos.model'}", list)


def test_a_hugging_face_file_keeps_its_ids_and_loses_truncation_and_padding(
    trained: Trained, foreign: dict[str, str], text: str
) -> None:
    from tokenizers import Tokenizer as Library

    library = Library.from_file(foreign["huggingface:gpt2"].partition(":")[2] + "/tokenizer.json")
    assert library.truncation is not None
    library.no_truncation()
    library.no_padding()
    tokenizer = trained("huggingface:gpt2")
    assert tokenizer.encode(text).tolist() == library.encode(text).ids
    assert tokenizer.eos == library.token_to_id("<|endoftext|>")
    assert tokenizer.vocabulary == library.get_vocab_size()
    assert tokenizer.unknown is None


def test_the_eos_of_a_hugging_face_file_is_the_one_that_its_config_names(trained: Trained) -> None:
    tokenizer = trained("huggingface:bert")
    assert tokenizer.eos == 1  # [CLS], while [SEP] is 2
    assert tokenizer.unknown == 0


def test_a_decoder_of_hugging_face_places_the_spaces(trained: Trained) -> None:
    tokenizer = trained("huggingface:bert")
    ids = tokenizer.encode("The cat sat 😀 on the mat")
    assert tokenizer.decode(ids) == "the cat sat \ufffd on the mat"
    assert "".join(tokenizer.pieces(ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Whitespace"}},
    ],
)
def test_a_byte_level_tokenizer_that_changes_the_text_is_not_lossless(
    foreign: dict[str, str], tmp_path: Path, change: dict[str, object]
) -> None:
    source = Path(foreign["huggingface:gpt2"].partition(":")[2]) / "tokenizer.json"
    changed = tmp_path / "tokenizer.json"
    changed.write_text(json.dumps(json.loads(source.read_text()) | change))
    tokenizer = train_tokenizer(f"huggingface:{tmp_path}", list)
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode("e\u0301 The")) != "e\u0301 The"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "contains no JSON object"),
        ("{}", "it has no model"),
        ('{"model": {"type": "nonsense"}}', "cannot be read"),
    ],
)
def test_a_file_that_is_no_hugging_face_tokenizer_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=message):
        train_tokenizer(f"huggingface:{tmp_path}", list)


def test_a_hugging_face_file_without_eos_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    Library(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=r"no end-of-sequence token.*tokenizer_config"):
        train_tokenizer(f"huggingface:{tmp_path}", list)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "a"}')
    assert train_tokenizer(f"huggingface:{tmp_path}", list).eos == 0
