"""Tokenizers: text to token ids and back, in eight kinds with one interface and one file format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from chainrule.errors import TokenizerError, nearest
from chainrule.tokenizers.base import CountedTokenizer, Ids, Texts, Tokenizer, read_json, well_formed
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.jieba import Jieba
from chainrule.tokenizers.sentencepiece import SentencePiece
from chainrule.tokenizers.subword import BPE, Unigram
from chainrule.tokenizers.words import Words

__all__ = [
    "TOKENIZERS",
    "Ids",
    "Texts",
    "Tokenizer",
    "count_for_tokenizer",
    "is_counted",
    "load_tokenizer",
    "tokenizer_from_counts",
    "train_tokenizer",
]

TOKENIZERS: dict[str, type[Tokenizer]] = {
    "chars": Chars,
    "bytes": Bytes,
    "words": Words,
    "bpe": BPE,
    "unigram": Unigram,
    "sentencepiece": SentencePiece,
    "jieba": Jieba,
    "huggingface": HuggingFace,
}


def train_tokenizer(spec: str, texts: Texts) -> Tokenizer:
    """Train or load the tokenizer of a spec such as `chars`, `bpe:8000` or `sentencepiece:FILE.model`.

    `texts()` returns the training text in pieces and may be called several times. The text may have any length, since
    no kind keeps more than its vocabulary or a sample of it in memory.
    """
    kind, argument = _parsed(spec)
    return kind.train(argument, lambda: map(well_formed, texts()))


def is_counted(spec: str) -> bool:
    """Whether the tokenizer of a spec can be trained on counts of parts of a text."""
    return issubclass(_parsed(spec)[0], CountedTokenizer)


def count_for_tokenizer(spec: str, texts: Iterable[str]) -> Counter[str]:
    """Count a part of the text that a tokenizer is trained on; the counts of all parts are added."""
    kind, argument = _parsed(spec)
    assert issubclass(kind, CountedTokenizer)
    return kind.count(argument, map(well_formed, texts))


def tokenizer_from_counts(spec: str, counts: Counter[str]) -> Tokenizer:
    """The tokenizer that `train_tokenizer` gives for a text with these counts."""
    kind, argument = _parsed(spec)
    assert issubclass(kind, CountedTokenizer)
    return kind.from_counts(argument, counts)


def _parsed(spec: str) -> tuple[type[Tokenizer], str | None]:
    kind, colon, argument = spec.partition(":")
    if kind not in TOKENIZERS:
        raise TokenizerError(f"unknown tokenizer {kind!r}; {nearest(kind, TOKENIZERS)}")
    return TOKENIZERS[kind], argument if colon else None


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Load a tokenizer that `Tokenizer.save` has written."""
    path = Path(path)
    data = read_json(path)
    kind = str(data.get("kind"))
    if kind not in TOKENIZERS:
        raise TokenizerError(f"tokenizer file {str(path)!r} has the unknown kind {kind!r}; upgrade chainrule")
    try:
        return TOKENIZERS[kind].from_json(data)
    except TokenizerError as error:
        raise TokenizerError(f"tokenizer file {str(path)!r} is damaged: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise TokenizerError(
            f"tokenizer file {str(path)!r} is damaged: {type(error).__name__} {error}; restore or retrain it"
        ) from None
