"""Byte-level subwords: byte-pair encoding and unigram, by Hugging Face `tokenizers`.

Both split the text into words as GPT-2 does, then into byte strings. All 256 bytes are tokens, so every text can be
encoded. Ids are those of the library plus one: `<eos>` is not in the vocabulary of the library, where a text could
contain its name.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import ByteTokenizer, Ids, Texts, parse_size, require_text, sample
from chainrule.tokenizers.bytes import ALPHABET, surface
from chainrule.tokenizers.sentencepiece import SAMPLE as UNIGRAM_SAMPLE
from chainrule.tokenizers.sentencepiece import UNIGRAM, pieces_and_scores, train_model

if TYPE_CHECKING:
    import tokenizers

BPE_SAMPLE = 100_000_000  # characters of training text
LONGEST = 16  # bytes in a unigram piece


class Subword(ByteTokenizer):
    """`<eos>`, then byte strings; subclasses differ in how these are chosen."""

    def __init__(self, description: dict[str, Any]) -> None:
        # A newly trained tokenizer goes through JSON as well: parsing a float may change its last bit.
        self.description = description
        self._library = read_library(description)
        ids = self._library.get_vocab()
        tokens = sorted(ids, key=ids.__getitem__)
        if missing := set(ALPHABET).difference(tokens):
            raise ValueError(f"{len(missing)} of the 256 bytes are missing")
        self._surfaces = [b"", *map(surface, tokens)]

    @classmethod
    @final
    def train(cls, argument: str | None, texts: Texts) -> Self:
        size = parse_size(cls.kind, argument, least=1 + len(ALPHABET))
        require_text(cls.kind, texts)
        return cls(json.loads(cls._learn(size - 1, texts).to_str()))

    @staticmethod
    @abstractmethod
    def _learn(size: int, texts: Texts) -> tokenizers.Tokenizer:
        """Train at most `size` tokens including the 256 bytes; deterministic for the same text."""

    def _encode(self, text: str) -> Ids:
        return np.array(self._library.encode(text).ids, dtype=np.int32) + np.int32(1)

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": self.description}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["tokenizer"])


class BPE(Subword):
    """Byte-pair encoding: the most frequent pair of tokens is repeatedly merged into a new token."""

    kind: ClassVar[str] = "bpe"

    @staticmethod
    def _learn(size: int, texts: Texts) -> tokenizers.Tokenizer:
        from tokenizers import models, trainers

        library = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=ALPHABET, show_progress=False)
        library.train_from_iterator(sample(texts, BPE_SAMPLE), trainer)
        return library


class Unigram(Subword):
    """Unigram: the tokens, and the segmentation of each word, that maximise the likelihood of the text.

    The trainer of the library visits words in the order of a hash table, so its scores and ids vary between runs. The
    tokens are therefore estimated by SentencePiece, from the counts of the same words.
    """

    kind: ClassVar[str] = "unigram"

    @staticmethod
    def _learn(size: int, texts: Texts) -> tokenizers.Tokenizer:
        from tokenizers import models

        words = _byte_level(models.BPE()).pre_tokenizer
        counts: Counter[str] = Counter()
        for passage in sample(texts, UNIGRAM_SAMPLE):
            counts.update(word for word, _ in words.pre_tokenize_str(passage))
        unused = sorted(set(ALPHABET).difference(*counts))
        learned = train_model(
            "unigram",
            (f"{word}\t{count}" for word, count in sorted(counts.items())),
            UNIGRAM
            | {
                "vocab_size": size - len(unused) + 1,  # and <unk>, which is dropped
                "input_format": "tsv",
                "character_coverage": 1.0,
                "max_sentencepiece_length": LONGEST,
                # words are segmented by likelihood only
                "split_by_whitespace": False,
                "split_by_unicode_script": False,
                "split_by_number": False,
            },
        )
        pieces = pieces_and_scores(learned)
        rarest = min(score for _, score in pieces) - 1.0
        return _byte_level(models.Unigram([*pieces, *((byte, rarest) for byte in unused)]))


def _byte_level(model: tokenizers.models.Model) -> tokenizers.Tokenizer:
    """Return a tokenizer that splits text into words as GPT-2 does, without adding or dropping characters."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    return library


def read_library(description: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build a Hugging Face tokenizer from its JSON."""
    from tokenizers import Tokenizer as Library

    try:
        return Library.from_str(json.dumps(description))
    except Exception as error:  # the library has no more specific exception
        raise TokenizerError(f"the Hugging Face tokenizer cannot be read: {error}") from None
