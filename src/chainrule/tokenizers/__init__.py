"""Tokenizers: text to token ids and back, in eight kinds with one interface and one file format."""

from __future__ import annotations

from pathlib import Path

from chainrule.errors import TokenizerError, nearest
from chainrule.tokenizers.base import Ids, Texts, Tokenizer, read_json, well_formed
from chainrule.tokenizers.bytes import Bytes
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.jieba import Jieba
from chainrule.tokenizers.sentencepiece import SentencePiece
from chainrule.tokenizers.subword import BPE, Unigram
from chainrule.tokenizers.words import Words

__all__ = ["TOKENIZERS", "Ids", "Texts", "Tokenizer", "load_tokenizer", "train_tokenizer"]

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
    kind, colon, argument = spec.partition(":")
    if kind not in TOKENIZERS:
        raise TokenizerError(f"unknown tokenizer {kind!r}; {nearest(kind, TOKENIZERS)}")
    return TOKENIZERS[kind].train(argument if colon else None, lambda: map(well_formed, texts()))


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
