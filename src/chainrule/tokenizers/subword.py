"""Subwords over bytes, learned from the text: byte-pair encoding and unigram, by Hugging Face `tokenizers`.

Both cut the text into words the way GPT-2 does and then into pieces of bytes. The 256 bytes are always pieces, so
every text can be spelled. Our ids are those of the library plus one: `<eos>` is not in the library's vocabulary,
where its name could be met or even learned in a text.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import Ids, Texts, Tokenizer, parse_size, require_text, spell
from chainrule.tokenizers.byte_level import ALPHABET, surface
from chainrule.tokenizers.passages import sample
from chainrule.tokenizers.sentencepiece import SAMPLE as UNIGRAM_SAMPLE
from chainrule.tokenizers.sentencepiece import UNIGRAM, pieces_and_scores, train_model

if TYPE_CHECKING:
    import tokenizers

BPE_SAMPLE = 100_000_000  # characters that the merges are learned from
LONGEST = 16  # bytes in a unigram piece


class Subword(Tokenizer):
    """`<eos>`, then pieces of bytes; what differs is how the pieces are chosen."""

    def __init__(self, description: dict[str, Any]) -> None:
        # A trained one goes through JSON as well: the library's reading of a float may differ in the last bit.
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
        """At most `size` pieces, the 256 bytes among them. The same text gives the same pieces in the same order."""

    @property
    def vocabulary(self) -> int:
        return len(self._surfaces)

    @property
    def unknown(self) -> int | None:
        return None

    @property
    def lossless(self) -> bool:
        return True

    @property
    def note(self) -> str:
        return "decode gives any text back exactly; an unseen character is spelled in bytes"

    def _encode(self, text: str) -> Ids:
        return np.array(self._library.encode(text).ids, dtype=np.int32) + np.int32(1)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return spell([self._surfaces[index] for index in ids])

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": self.description}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["tokenizer"])


class BPE(Subword):
    """Byte-pair encoding: the most frequent pair of pieces is merged into a new piece, again and again."""

    kind: ClassVar[str] = "bpe"

    @staticmethod
    def _learn(size: int, texts: Texts) -> tokenizers.Tokenizer:
        from tokenizers import models, trainers

        library = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=ALPHABET, show_progress=False)
        library.train_from_iterator(sample(texts, BPE_SAMPLE), trainer)
        return library


class Unigram(Subword):
    """Unigram: the set of pieces, and the cut of each word, under which the text is most likely.

    The library's own trainer visits words in the order of a hash table, which differs from run to run, and so do its
    scores and ids. The pieces are therefore estimated by SentencePiece, from the counts of the same words.
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
                # a word is cut by likelihood alone
                "split_by_whitespace": False,
                "split_by_unicode_script": False,
                "split_by_number": False,
            },
        )
        pieces = pieces_and_scores(learned)
        rarest = min(score for _, score in pieces) - 1.0
        return _byte_level(models.Unigram([*pieces, *((byte, rarest) for byte in unused)]))


def _byte_level(model: tokenizers.models.Model) -> tokenizers.Tokenizer:
    """GPT-2's way of cutting text into words, with nothing added in front and nothing dropped."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.decoder = decoders.ByteLevel()
    return library


def read_library(description: dict[str, Any]) -> tokenizers.Tokenizer:
    """A Hugging Face tokenizer from its JSON."""
    from tokenizers import Tokenizer as Library

    try:
        return Library.from_str(json.dumps(description))
    except Exception as error:  # the library raises nothing more specific
        raise TokenizerError(f"the Hugging Face tokenizer cannot be read: {error}") from None
